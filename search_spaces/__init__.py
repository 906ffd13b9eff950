"""Sweep files that ship with the package and are found by short name, as in `glue/rte`."""
