"""Tracking: MLflow runs are written and read here, and nowhere else."""
