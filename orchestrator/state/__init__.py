"""State of a sweep on disk: event log, checkpoints, definition, and the workspace of all sweeps."""
