"""The parts of a Slurm job: a layout as groups of equal nodes, the first of them with the CS system. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from csrun.jobs.layout import JobLayout


@dataclass(frozen=True, slots=True)
class Component:
    """Nodes of a job that are asked for alike; a job of several is heterogeneous in Slurm's words.

    Ranks count on from component to component.

    Attributes:
        nodes: their number.
        tasks_per_node: tasks on each of them.
        cpus_per_task: CPUs of each task; None leaves them to Slurm.
        holds_system: the CS system (a generic resource or a licence) is asked for with this one.
        exclusive: no other job may use these nodes.
        cyclic: tasks go round robin over the nodes.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int | None = None
    holds_system: bool = False
    exclusive: bool = True
    cyclic: bool = False

    @property
    def tasks(self) -> int:
        """Tasks on all its nodes."""
        return self.nodes * self.tasks_per_node


def components(layout: JobLayout) -> tuple[Component, ...]:
    """The components of a job, the chief's node first: it is the one that owns the CS system.

    One node is one component. Otherwise the chief's node stands alone, because the system is asked for once
    and not for every node; single-task nodes behind it form the second, all others the last component.
    Single-task nodes leave the CPUs of their task open: it has the node for itself. The chief's node is
    shared with other jobs where it runs as many tasks as any other and there are several nodes, as sites have
    always had it.
    """
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
    """The components with all CPUs of nodes that are theirs alone, where the layout leaves CPUs open. Pure.

    Without a number `srun --exclusive` reserves such a node and gives each task one CPU of it, to which Slurm
    binds it on most sites.

    Args:
        parts: the components.
        node_cpus: CPUs that every node has.
    """
    return tuple(
        replace(part, cpus_per_task=max(1, node_cpus // part.tasks_per_node))
        if part.exclusive and part.cpus_per_task is None
        else part
        for part in parts
    )
