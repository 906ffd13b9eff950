"""The sweep: Ray Tune schedules, Optuna suggests, ASHA stops, MLflow remembers."""
