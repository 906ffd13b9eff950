"""Checks, costs and simulations of a sweep before it starts, and of the machine it would use."""
