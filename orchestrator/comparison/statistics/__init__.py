"""Statistics of tuned methods: tests of pairs, their power, and looks before the end."""
