"""What an adapter's answers to labelled rows are worth: scores with intervals, and failures."""
