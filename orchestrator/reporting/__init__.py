"""Reporting of sweeps: live view, status, leaderboard, report, MLflow's pages."""
