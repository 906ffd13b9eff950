"""Verbs for readers of the paper: its tables, PET, and files for the GLUE server."""
