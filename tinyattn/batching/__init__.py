"""Rows as tensors: padded batches, packed sequences without padding, length buckets."""
