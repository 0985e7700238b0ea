"""The settings of a site, as plain data, and what follows from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cs_toolkit.errors import ToolkitError
from csrun.commandline import find_command
from csrun.errors import CsrunError

Launcher = Literal["local", "slurm"]
LAUNCHERS: tuple[Launcher, ...] = ("local", "slurm")

Container = Literal["none", "singularity", "apptainer", "charliecloud"]
CONTAINERS: tuple[Container, ...] = ("none", "singularity", "apptainer", "charliecloud")

SITE_CONFIG_VARIABLE = "CSRUN_SITE_CONFIG"
"""Names the site file, in front of all places that are searched."""


@dataclass(frozen=True, slots=True)
class Site:
    """A site's settings. A field has the name of its key in the site file.

    Attributes:
        launcher: where jobs run; None: decided by `choose_launcher`.
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

    launcher: Launcher | None = None
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


def choose_launcher(flag: Launcher | None, site: Site, environment: Mapping[str, str]) -> Launcher:
    """Where a job runs: the flag, else the site's launcher, else Slurm where anything speaks for it.

    What speaks for Slurm: a resource of Slurm's is configured for the CS system, or we are inside an
    allocation (SLURM_JOB_ID) and srun is in PATH.
    """
    if flag or site.launcher:
        return flag or site.launcher or "local"
    if site.gres_resource or site.gres_node or site.licence:
        return "slurm"
    inside = bool(environment.get("SLURM_JOB_ID"))
    return "slurm" if inside and _has_srun(environment.get("PATH", "")) else "local"


def _has_srun(path: str) -> bool:
    try:
        find_command("srun", path)
    except ToolkitError:
        return False
    return True
