"""Data: rows of a task, from their files through checks and tokenising to cached splits."""
