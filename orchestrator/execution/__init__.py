"""How trials run on Ray: Ray Tune's tuner, trainable and callback, and the workers behind them."""
