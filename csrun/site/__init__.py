"""Settings of a site for all its users: launcher, default layout, container, resource of the CS system.

This module is plain data and cheap to import; `loading` builds a `Site` from the site file and the
environment; `file`, which imports pydantic and YAML, is imported only if a site file exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from csrun.errors import CsrunError

Container = Literal["none", "singularity", "apptainer", "charliecloud"]
CONTAINERS: tuple[Container, ...] = ("none", "singularity", "apptainer", "charliecloud")

SITE_CONFIG_VARIABLE = "CSRUN_SITE_CONFIG"
"""Variable with the path of the site file, which precedes all searched places."""


@dataclass(frozen=True, slots=True)
class Site:
    """A site's settings. A field has the name of its key in the site file.

    Attributes:
        launcher: name of a scheduler in `csrun.schedulers.registry`; None to let its `choose` decide.
        def_nodes: default number of nodes of a job.
        def_tasks_per_node: default number of tasks on each node; 2 are the smallest job with both roles.
        def_cpus_per_task: default number of CPUs of each task; None to leave it open.
        container: runtime of programs; "none" for the environment of `python`.
        python: absolute path of the interpreter of programs; empty for the toolkit's.
        container_image: absolute path of the image: a file, for charliecloud a directory too.
        container_options: further arguments of the container runtime, in front of the image.
        mount_dirs: absolute directories that every container mounts.
        gres_resource: Slurm's resource for the CS system, without "--gres=" or "gres:", for example "cs:1".
        gres_node: the node that owns the resource, kept free of CPU-only jobs.
        licence: Slurm license for the CS system if it is not a gres, for example "cs:1".
        cs_ip: address of the CS system, in the form of the programs' --cs_ip.
        partition: Slurm partition of all jobs; empty for the cluster's default.
        account: Slurm account.
        qos: Slurm quality of service.
        time_limit: time limit in one of Slurm's formats, for example "4:00:00" or "90" (minutes).
        slurm_options: further arguments of srun and sbatch.
    """

    launcher: str | None = None
    def_nodes: int = 1
    def_tasks_per_node: int = 2
    def_cpus_per_task: int | None = None
    container: Container = "none"
    python: str = ""
    container_image: str = ""
    container_options: tuple[str, ...] = ()
    mount_dirs: tuple[str, ...] = ()
    gres_resource: str = ""
    gres_node: str = ""
    licence: str = ""
    cs_ip: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""
    slurm_options: tuple[str, ...] = ()


class SiteError(CsrunError):
    """The settings are invalid; the message lists all errors with their places, one per line."""

    exit_code = 2

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        super().__init__("\n".join(errors))
