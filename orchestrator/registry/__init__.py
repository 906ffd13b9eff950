"""MLflow's model registry: versions of adapters, champions, and the tests that promote to one."""
