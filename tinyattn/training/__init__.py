"""Training of an adapter: trainer, DeepSpeed engine, evaluations, cache of PLMs and data."""
