"""The driver of a batch of trials: events in, decisions out, and who hears of them; without Ray."""
