"""What to try next and whom to stop: the Optuna searcher and ASHA."""
