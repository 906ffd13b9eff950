"""Landscapes: scores of methods over learning rates, the evidence for ranges and for tests."""
