"""How trials run on Ray: Ray Tune's tuner, adapters over the driver, trainable and workers."""
