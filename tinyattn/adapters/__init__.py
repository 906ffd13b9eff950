"""Adapters: what one trial trains in a shared frozen PLM, with its classifier and files."""
