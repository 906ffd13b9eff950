"""Training of an adapter: the trainer, its DeepSpeed engine, evaluations, the cache of PLMs."""
