"""The specification of a sweep: its file, its space, its batches of trials, their outcomes."""
