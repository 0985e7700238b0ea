"""The Slurm allocation that a launcher finds itself in: a batch script, a shell of salloc. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.base import JobHere
from csrun.schedulers.slurm.components import Component, components
from csrun.schedulers.slurm.hostlist import expand_hostlist


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes that Slurm has given to a job.

    Attributes:
        job_id: of the job; of a heterogeneous one its leader's.
        groups: the nodes of every component; one group where the job is not heterogeneous.
        heterogeneous: it was asked for as components, be it only one.
        tasks_per_node, cpus_per_task: what the job was submitted with; None where it does not say.
        cpus_per_node: CPUs that the job has on each of its nodes, by name; empty where it does not say.
        restarts: how often the job was put back into the queue.
    """

    job_id: str
    groups: tuple[tuple[str, ...], ...]
    heterogeneous: bool = False
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    cpus_per_node: Mapping[str, int] | None = None
    restarts: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes."""
        return tuple(name for group in self.groups for name in group)

    def ordered(self, first: str) -> tuple[str, ...]:
        """All nodes, `first` in front if it is one of them."""
        if first not in self.nodes:
            return self.nodes
        return (first, *(name for name in self.nodes if name != first))

    def check(self, layout: JobLayout, first: str = "") -> None:
        """Whether a job fits.

        Args:
            layout: of the job.
            first: node of the chief; "": the first one.

        Raises:
            UsageError: it does not fit; the message says what there is.
        """
        parts = components(layout)
        wanted, there = [part.nodes for part in parts], [len(group) for group in self.groups]
        if self.heterogeneous and wanted != there:
            raise UsageError(
                f"the layout needs components of {_listed(wanted)} nodes and job {self.job_id} has "
                f"components of {_listed(there)}; expected the same: give --total-nodes and "
                f"--single-task-nodes that fit, or ask Slurm for one component"
            )
        if sum(wanted) > sum(there):
            raise UsageError(
                f"--total-nodes={sum(wanted)}: job {self.job_id} has {len(self.nodes)} nodes "
                f"({', '.join(self.nodes[:8])}{', ...' if len(self.nodes) > 8 else ''}); expected at most as "
                f"many: lower --total-nodes, or ask Slurm for more nodes"
            )
        self._check_cpus(parts, self.ordered(first))

    def _check_cpus(self, parts: tuple[Component, ...], nodes: tuple[str, ...]) -> None:
        each_node = (part for part in parts for _ in range(part.nodes))
        for name, part in zip(nodes, each_node, strict=False):
            needed = part.tasks_per_node * (part.cpus_per_task or 1)
            available = (self.cpus_per_node or {}).get(name, needed)
            if needed > available:
                raise UsageError(
                    f"job {self.job_id} has {available} CPU{'s' if available > 1 else ''} on {name}, and the "
                    f"tasks there need {needed}; expected enough: lower --tasks-per-node or --cpus-per-task, "
                    f"or ask Slurm for more (--ntasks-per-node, --cpus-per-task)"
                )


def read_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation that the variables of Slurm describe; None outside of one.

    Raises:
        UsageError: they cannot be understood.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    size = environment.get("SLURM_HET_SIZE", "")
    suffixes = [f"_HET_GROUP_{number}" for number in range(int(size))] if size.isdigit() else [""]
    groups = []
    cpus: dict[str, int] = {}
    for suffix in suffixes:
        text = environment.get(f"SLURM_JOB_NODELIST{suffix}", "")
        if not text:
            raise UsageError(
                f"SLURM_JOB_ID is {job_id} and SLURM_JOB_NODELIST{suffix} is not set; expected all variables "
                f"of the job: start csrun_wse in a batch script or a shell of salloc, or unset SLURM_JOB_ID"
            )
        names = tuple(expand_hostlist(text))
        groups.append(names)
        cpus.update(
            zip(names, _repeated(environment.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}", "")), strict=False)
        )
    return Allocation(
        job_id=job_id,
        groups=tuple(groups),
        heterogeneous=bool(size),
        tasks_per_node=_number(environment.get("SLURM_NTASKS_PER_NODE", "")),
        cpus_per_task=_number(environment.get("SLURM_CPUS_PER_TASK", "")),
        cpus_per_node=cpus,
        restarts=_number(environment.get("SLURM_RESTART_COUNT", "")) or 0,
    )


def job_here(environment: Mapping[str, str]) -> JobHere | None:
    """The allocation in the words of all schedulers."""
    if not environment.get("SLURM_JOB_ID"):
        return None
    try:
        allocation = read_allocation(environment)
    except UsageError:  # said where the nodes are needed
        allocation = None
    # Set in every process that Slurm has started on a node; a shell of salloc may be on another machine.
    on_node = bool(environment.get("SLURMD_NODENAME"))
    return JobHere(len(allocation.nodes) if allocation else None, on_node)


def host_file(layout: JobLayout, nodes: tuple[str, ...]) -> str:
    """The content of a host file: the node of every task, by rank."""
    return "".join(f"{nodes[number]}\n" for number in layout.nodes_of_tasks())


def _repeated(text: str) -> list[int]:
    """ "16(x2),8" is 16, 16, 8."""
    counts: list[int] = []
    for value, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(value)] * int(times or 1)
    return counts


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _listed(counts: list[int]) -> str:
    return " + ".join(map(str, counts))
