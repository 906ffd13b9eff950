"""The Optuna searcher, which suggests trials, and ASHA, which stops them."""
