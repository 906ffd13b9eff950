"""Measurements: ratios against floors and rivals in one run, order interleaved, medians, spread."""
