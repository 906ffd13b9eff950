"""The registry of adapters: versions, champions, and the tests that move the alias."""
