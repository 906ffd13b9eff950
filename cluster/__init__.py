"""Where a sweep runs: this machine today, more kinds of cluster in time."""
