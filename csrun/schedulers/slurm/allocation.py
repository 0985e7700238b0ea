"""Nodes of a Slurm job: components of a layout, the current allocation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.base import JobHere
from csrun.schedulers.hostlist import expand_hostlist


@dataclass(frozen=True, slots=True)
class Component:
    """Equal nodes of a job; Slurm calls a job of several components heterogeneous.

    Ranks are numbered across components.

    Attributes:
        nodes: number of nodes.
        tasks_per_node: tasks on each node.
        cpus_per_task: CPUs of each task; None leaves the number to Slurm.
        holds_system: the CS system (a generic resource or a license) is requested with this component.
        exclusive: no other job may use these nodes.
        cyclic: tasks are distributed round robin over the nodes.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int | None = None
    holds_system: bool = False
    exclusive: bool = True
    cyclic: bool = False

    @property
    def tasks(self) -> int:
        """Number of tasks on all nodes."""
        return self.nodes * self.tasks_per_node


def components(layout: JobLayout) -> tuple[Component, ...]:
    """Divide a job into components, first the chief's node, which owns the CS system.

    Of several nodes, the chief's is a separate component; other single-task nodes are the second component,
    and all remaining nodes the last.
    """
    # The chief's node is separate because Slurm requests a generic resource for every node of a component.
    # The CPUs of the task on a single-task node are left open: it has the whole node. A chief's node with as
    # many tasks as the others may be shared with other jobs, which is what sites expect.
    total, tasks, cpus = layout.total_nodes, layout.tasks_per_node, layout.cpus_per_task
    single = layout.single_task_nodes
    if total == 1:
        return (Component(1, tasks, cpus, holds_system=True),)
    if not single:
        first = Component(1, tasks, cpus, holds_system=True, exclusive=False)
        return (first, Component(total - 1, tasks, cpus, cyclic=layout.cyclic))
    between = (Component(single - 1, 1),) if single > 1 else ()
    rest = Component(total - single, tasks, cpus, cyclic=layout.cyclic)
    return (Component(1, 1, holds_system=True), *between, rest)


def with_whole_nodes(parts: Sequence[Component], node_cpus: int) -> tuple[Component, ...]:
    """Give the tasks of exclusive nodes all CPUs if the layout leaves their number open. Pure.

    Args:
        parts: the components.
        node_cpus: number of CPUs that every node has.
    """
    # Without a number `srun --exclusive` reserves a node and gives each task one CPU, to which most sites
    # bind it.
    return tuple(
        replace(part, cpus_per_task=max(1, node_cpus // part.tasks_per_node))
        if part.exclusive and part.cpus_per_task is None
        else part
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes that Slurm has given to a job.

    Attributes:
        job_id: of the job; of a heterogeneous one that of its leader.
        groups: the nodes of every component; one group for a job that is not heterogeneous.
        heterogeneous: requested in components, even if there is only one.
        tasks_per_node, cpus_per_task: as the job was submitted; None if unknown.
        cpus_per_node: number of CPUs of the job on each node, by name; empty if unknown.
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
        """Names of all nodes."""
        return tuple(name for group in self.groups for name in group)

    def ordered(self, first: str) -> tuple[str, ...]:
        """Return all nodes, `first` in front if it is one of them."""
        if first not in self.nodes:
            return self.nodes
        return (first, *(name for name in self.nodes if name != first))

    def check(self, layout: JobLayout, first: str = "") -> None:
        """Check that a job fits.

        Args:
            layout: of the job.
            first: node of the chief; "" for the first node.

        Raises:
            UsageError: it does not fit.
        """
        parts = components(layout)
        wanted, available = [part.nodes for part in parts], [len(group) for group in self.groups]
        if self.heterogeneous and wanted != available:
            raise UsageError(
                f"the layout needs components of {_format_counts(wanted)} nodes and job {self.job_id} has "
                f"components of {_format_counts(available)}; expected the same: give --total-nodes and "
                f"--single-task-nodes that fit, or ask Slurm for one component"
            )
        if sum(wanted) > sum(available):
            raise UsageError(
                f"--total-nodes={sum(wanted)}: job {self.job_id} has {len(self.nodes)} nodes "
                f"({', '.join(self.nodes[:8])}{', ...' if len(self.nodes) > 8 else ''}); expected no "
                f"more: lower --total-nodes, or ask Slurm for more nodes"
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
    """Read the allocation from Slurm's variables; None outside an allocation.

    Raises:
        UsageError: variables are missing or invalid.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    size = environment.get("SLURM_HET_SIZE", "")
    components = _number(size)
    suffixes = (f"_HET_GROUP_{number}" for number in range(components)) if components else ("",)
    groups = []
    cpus: dict[str, int] = {}
    for suffix in suffixes:
        text = environment.get(f"SLURM_JOB_NODELIST{suffix}", "")
        if not text:
            raise UsageError(
                f"SLURM_JOB_ID is {job_id} but SLURM_JOB_NODELIST{suffix} is not set; expected all variables "
                f"of the job: start csrun_wse in a batch script or a shell of salloc, or unset SLURM_JOB_ID"
            )
        names = tuple(expand_hostlist(text))
        groups.append(names)
        cpus.update(
            zip(names, _iterate_counts(environment.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}", "")), strict=False)
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
    """Return the allocation as a record that all schedulers share."""
    if not environment.get("SLURM_JOB_ID"):
        return None
    try:
        allocation = read_allocation(environment)
    except UsageError:  # reported when the nodes are needed
        allocation = None
    # Slurm sets this in every process that it starts on a node; a shell of salloc may be on another machine.
    node = environment.get("SLURMD_NODENAME", "")
    cpus = _number(environment.get("SLURM_CPUS_ON_NODE", "")) if node else None
    return JobHere(len(allocation.nodes) if allocation else None, bool(node), node, cpus or None)


def host_file(layout: JobLayout, nodes: tuple[str, ...]) -> str:
    """Return the content of a host file: the node of every task, by rank."""
    return "".join(f"{nodes[number]}\n" for number in layout.nodes_of_tasks())


def _iterate_counts(text: str) -> Iterator[int]:
    """Expand repetitions: "16(x2),8" to 16, 16, 8."""
    for value, times in re.findall(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?", text):
        yield from repeat(int(value), int(times or 1))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _format_counts(counts: list[int]) -> str:
    return " + ".join(map(str, counts))


def step_variables(
    environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
) -> dict[str, str]:
    """Return the variables that Slurm sets for a task of a step on this node (srun(1), output environment).

    The result is empty if Slurm has not started this process. Numbers of the job, its step and its nodes are
    not changed.

    Args:
        environment: of this process.
        rank: of the task.
        tasks: number of tasks of the step.
        cpus: of each task; None to leave the number of CPUs unchanged.
    """
    if "SLURM_PROCID" not in environment:
        return {}  # Slurm would not have started the tasks either
    number, count = str(rank), str(tasks)
    each = {} if cpus is None else {"SLURM_CPUS_PER_TASK": str(cpus)}
    return {
        **each,
        "SLURM_PROCID": number,
        "SLURM_LOCALID": number,
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(tasks))),
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": count,
        "SLURM_NPROCS": count,
        "SLURM_NTASKS_PER_NODE": count,
        "SLURM_TASKS_PER_NODE": count,
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_STEP_TASKS_PER_NODE": count,
    }
