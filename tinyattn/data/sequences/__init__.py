"""Rows whose target is a sequence: a text to generate, or a tag for each word."""
