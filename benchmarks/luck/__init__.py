"""How often luck tells equal methods apart when each was tuned by a budget."""
