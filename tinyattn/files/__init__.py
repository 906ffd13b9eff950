"""Files: atomic writes, reading within bounds, memory-mapped caches, object stores."""
