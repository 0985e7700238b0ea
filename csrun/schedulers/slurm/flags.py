"""Flags that pass through to srun and sbatch under the same names."""

from __future__ import annotations

from csrun.schedulers.base import Flag
from csrun.site.values import check_time_limit

FLAGS = (
    Flag("--time", "LIMIT", "Time limit of a Slurm job: minutes, H:M:S or D-H:M.", check_time_limit),
    Flag("--partition", "NAME", "Slurm partition."),
    Flag("--account", "NAME", "Slurm account."),
    Flag("--qos", "NAME", "Slurm quality of service."),
    Flag("--dependency", "TYPE:JOB", "Start after other Slurm jobs, for example afterok:1234."),
)
