"""How many tasks a job has, on which node each of them is, and which CPUs it gets. Pure arithmetic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_toolkit.errors import UsageError
from csrun.site.model import Site


@dataclass(frozen=True, slots=True)
class JobLayout:
    """The shape of a job of csrun_wse.

    Attributes:
        total_nodes: nodes of the job, N.
        tasks_per_node: tasks on each node that is not a single-task node, T.
        cpus_per_task: CPUs of each task, C; None leaves them to the scheduler.
        single_task_nodes: the first S nodes run one task each; S < N.
        cyclic: workers go round robin over the nodes instead of filling one after the other.
    """

    total_nodes: int
    tasks_per_node: int
    cpus_per_task: int | None = None
    single_task_nodes: int = 0
    cyclic: bool = False

    def __post_init__(self) -> None:
        if self.single_task_nodes >= self.total_nodes:
            raise UsageError(
                f"--single-task-nodes={self.single_task_nodes} with --total-nodes={self.total_nodes}; "
                f"expected fewer single-task nodes than nodes, because the remaining nodes run "
                f"--tasks-per-node tasks each: lower --single-task-nodes or raise --total-nodes"
            )

    @property
    def num_tasks(self) -> int:
        """S + (N - S) * T."""
        return self.single_task_nodes + (self.total_nodes - self.single_task_nodes) * self.tasks_per_node

    def nodes_of_tasks(self) -> tuple[int, ...]:
        """The node number (0 .. N-1) of every task, by rank.

        The first group of nodes is the chief's: the S single-task nodes, else node 0 alone. `cyclic`
        concerns the nodes behind it only, so that the chief stays where the CS system is.
        """
        if self.single_task_nodes:
            first_group = list(range(self.single_task_nodes))
        else:
            first_group = [0] * self.tasks_per_node
        rest = range(self.single_task_nodes or 1, self.total_nodes)
        if self.cyclic:
            others = [node for _ in range(self.tasks_per_node) for node in rest]
        else:
            others = [node for node in rest for _ in range(self.tasks_per_node)]
        return (*first_group, *others)


def resolve_layout(
    site: Site,
    machine_cpus: int,
    *,
    total_nodes: int | None = None,
    tasks_per_node: int | None = None,
    cpus_per_task: int | None = None,
    single_task_nodes: int = 0,
    cyclic: bool = False,
) -> JobLayout:
    """Fills in what the user has left open.

    Neither tasks nor CPUs given: the site's. Tasks only: the site's CPUs if that many tasks fit on a node,
    else open. CPUs only: as many tasks as fit on a node of `machine_cpus`, at least one. Both: as given.

    Raises:
        UsageError: --single-task-nodes leaves no node for the other tasks.
    """
    tasks = tasks_per_node
    cpus = cpus_per_task
    if tasks is None:
        tasks = site.def_tasks_per_node if cpus is None else max(1, machine_cpus // cpus)
    if cpus is None and site.def_cpus_per_task is not None:
        fits = tasks * site.def_cpus_per_task <= machine_cpus
        cpus = site.def_cpus_per_task if tasks_per_node is None or fits else None
    return JobLayout(
        total_nodes=total_nodes or site.def_nodes,
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        single_task_nodes=single_task_nodes,
        cyclic=cyclic,
    )


def pin_cpus(
    num_tasks: int, cpus_per_task: int | None, available: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """The CPUs of every task, by rank, disjoint and in the order of `available`; empty: nothing is pinned.

    Tasks are pinned only if all of them fit. On a machine that is too small, pinned tasks would wait for
    each other's CPU while another one idles; unpinned, the kernel balances them. Nor do we set
    OMP_NUM_THREADS and the like: TensorFlow, XLA and OpenMP size their pools by the affinity mask,
    so the mask alone is right where it holds, and where it does not a fixed number would only override
    what the user has set.
    """
    if cpus_per_task is None or num_tasks * cpus_per_task > len(available):
        return ()
    return tuple(
        tuple(available[first : first + cpus_per_task])
        for first in range(0, num_tasks * cpus_per_task, cpus_per_task)
    )


RECOMMENDATION_VERSION = 1
"""Of the files of an analysis; a change that breaks a reader raises it, further members do not."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Nodes, tasks on each of them, CPUs of each task."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int


def read_recommendation(path: Path) -> Recommendation:
    """Reads the member `recommendation` of an analysis.

    Raises:
        UsageError: the file cannot be read, is of a version to come, or holds no such member with three
            whole numbers of at least 1.
    """
    try:
        analysis: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--recommendation: cannot read {path}: {error.strerror}; expected the file that "
            f"'cs_input_analyzer --json FILE' has written"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"--recommendation: {path} is no JSON ({error}); expected the file that "
            f"'cs_input_analyzer --json FILE' has written"
        ) from error
    analysis = analysis if isinstance(analysis, dict) else {}
    version = analysis.get("format_version", RECOMMENDATION_VERSION)
    if type(version) is not int or version != RECOMMENDATION_VERSION:  # true would be equal to 1
        raise UsageError(
            f"--recommendation: {path} has format_version {json.dumps(version)}; "
            f"expected {RECOMMENDATION_VERSION}: write "
            "the file with the cs_input_analyzer that belongs to this csrun_wse"
        )
    found = analysis.get("recommendation")
    values = found if isinstance(found, dict) else {}
    counts: dict[str, Any] = {name: values.get(name) for name in ("nodes", "tasks_per_node", "cpus_per_task")}
    wrong = [name for name, count in counts.items() if type(count) is not int or count < 1]
    if wrong:
        raise UsageError(
            f"--recommendation: {path} has no usable recommendation.{', recommendation.'.join(wrong)}; "
            f"expected whole numbers of at least 1: write the file with 'cs_input_analyzer --json FILE'"
        )
    return Recommendation(**counts)
