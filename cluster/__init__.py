"""Where a sweep runs: this machine, a rack over ssh, a Slurm job, Kubernetes."""
