"""What can be known before a sweep starts: checks, costs, simulations."""
