"""Selection of the adapter to promote: finalists, four heads, collapse, permutation tests."""
