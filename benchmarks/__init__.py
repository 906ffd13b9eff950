"""Measurements: ratios to floors and rivals within one run, interleaved, as medians and spread."""
