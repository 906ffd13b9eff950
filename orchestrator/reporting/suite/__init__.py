"""A suite in reports: its results, status, page in MLflow and HTML report."""
