"""PLMs: frozen pretrained language models, their loading, families and packed attention."""
