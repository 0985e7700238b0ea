"""The settings of a site, as plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from csrun.errors import CsrunError

Container = Literal["none", "singularity", "apptainer", "charliecloud"]
CONTAINERS: tuple[Container, ...] = ("none", "singularity", "apptainer", "charliecloud")

SITE_CONFIG_VARIABLE = "CSRUN_SITE_CONFIG"
"""Names the site file, in front of all places that are searched."""


@dataclass(frozen=True, slots=True)
class Site:
    """A site's settings. A field has the name of its key in the site file.

    Attributes:
        launcher: where jobs run, a name of `csrun.schedulers.registry`; None: decided there by `choose`.
        def_nodes: nodes of a job that does not say otherwise.
        def_tasks_per_node: tasks on each of them; with one node, 2 is the smallest job with a role each.
        def_cpus_per_task: CPUs of each task; None where the site leaves that open.
        container: what programs run in; "none" is the environment of `python`.
        python: absolute path of the interpreter of programs; empty: the toolkit's own.
        container_image: absolute path of the image: a file, for charliecloud a directory too.
        container_options: further arguments of the container runtime, in front of the image.
        mount_dirs: absolute directories that every container sees.
        gres_resource: Slurm's name of the CS system without "--gres=" or "gres:", for example "cs:1".
        gres_node: the node that owns it, kept free of CPU-only jobs.
        licence: Slurm licence that stands for the CS system where it is no gres, for example "cs:1".
        cs_ip: address of the CS system, as programs take it with --cs_ip.
        partition: Slurm partition of all jobs; empty: the cluster's default.
        account: Slurm account.
        qos: Slurm quality of service.
        time_limit: time limit in one of Slurm's forms, for example "4:00:00" or "90" (minutes).
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
    """Settings that cannot be used; the message lists all faults, one a line, each with its place."""

    exit_code = 2

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))
