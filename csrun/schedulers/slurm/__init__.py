"""The `slurm` scheduler: jobs of a Slurm cluster."""
