"""Methods: what can be trained beside a frozen PLM, as modules that know nothing of trials."""
