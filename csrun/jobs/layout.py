"""Layout of a job: the number of its tasks, their nodes and their CPUs, and recommended layouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_toolkit.errors import UsageError
from cs_toolkit.files import read_json
from csrun.site import Site

# Format of the files of an input analysis. Incompatible changes raise it, additional members do not.
RECOMMENDATION_VERSION = 1


@dataclass(frozen=True, slots=True)
class JobLayout:
    """The layout of a job of csrun_wse.

    Attributes:
        total_nodes: nodes of the job, N.
        tasks_per_node: tasks on each node that is not a single-task node, T.
        cpus_per_task: CPUs of each task, C; None leaves the number to the scheduler.
        single_task_nodes: the first S nodes run one task each; S < N.
        cyclic: workers are distributed round robin over the nodes instead of node by node.
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
        """Number of tasks, S + (N - S) * T."""
        return self.single_task_nodes + (self.total_nodes - self.single_task_nodes) * self.tasks_per_node

    def nodes_of_tasks(self) -> tuple[int, ...]:
        """Return the node number (0 .. N-1) of every task, by rank.

        The first ranks are on the S single-task nodes, or on node 0 if there are none. `cyclic` applies only
        to the nodes after these.
        """
        # Rank 0, the chief, thereby always runs on node 0, which has the CS system.
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
    """Complete a layout that the user has given in part.

    With neither tasks nor CPUs, those of the site. With only tasks, the CPUs of the site if that many tasks
    fit on a node, else open. With only CPUs, as many tasks as fit on a node of `machine_cpus`, at least one.

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
    """Return disjoint CPUs for every task, by rank, in the order of `available`; empty if none is pinned."""
    # Only if all tasks fit: on a machine that is too small, pinned tasks would wait for each other's CPU
    # while another one is idle. OMP_NUM_THREADS and the like are not set: TensorFlow, XLA and OpenMP size
    # their pools by the affinity mask, and without a mask a fixed number would only override the user's.
    if cpus_per_task is None or num_tasks * cpus_per_task > len(available):
        return ()
    return tuple(
        tuple(available[first : first + cpus_per_task])
        for first in range(0, num_tasks * cpus_per_task, cpus_per_task)
    )


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The layout that an input analysis recommends."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int


def read_recommendation(path: Path) -> Recommendation:
    """Read the member `recommendation` from the file of an input analysis.

    Raises:
        UsageError: the file cannot be read, has another format version, or has no such member with three
            whole numbers of at least 1.
    """
    try:
        analysis: Any = read_json(path)
    except OSError as error:
        raise UsageError(
            f"--recommendation: cannot read {path}: {error.strerror}; expected the file that "
            f"'cs_input_analyzer --json FILE' has written"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"--recommendation: {path} is not JSON ({error}); expected the file that "
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
