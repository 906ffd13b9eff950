"""MLflow's web application behind a token, in a process of its own."""
