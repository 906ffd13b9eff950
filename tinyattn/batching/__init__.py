"""Batching: rows as padded batches or packed sequences, and cuts of a batch by length."""
