"""Comparisons over several tasks: what each method scores on them, ranks, and tests."""
