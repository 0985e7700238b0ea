"""Which task is pinned to which CPUs, where Slurm has not done it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from csrun.agent.protocol import Hello
from csrun.jobs.layout import pin_cpus


def pin_tasks(wanted: Sequence[int | None], hellos: Sequence[Hello]) -> list[tuple[int, ...]]:
    """The CPUs of every task, by rank; empty: left as Slurm has it.

    On a node that belongs to the job as a whole and where all tasks may use the same CPUs, nobody has pinned
    them. On a node that is shared with other jobs only Slurm can know whose CPUs are whose.

    Args:
        wanted: by rank, how many CPUs the task shall have; None: not pinned.
        hellos: by rank, what the agents say of node and CPUs.
    """
    pins: list[tuple[int, ...]] = [()] * len(hellos)
    by_node: dict[str, list[int]] = defaultdict(list)
    for rank, hello in enumerate(hellos):
        by_node[hello.node].append(rank)
    for ranks in by_node.values():
        first = hellos[ranks[0]]
        alike = all(hellos[rank].cpus == first.cpus for rank in ranks)
        counts = {wanted[rank] for rank in ranks}
        if alike and first.cpus_on_node >= len(first.cpus) and len(counts) == 1:
            chosen = pin_cpus(len(ranks), counts.pop(), first.cpus)
            for rank, cpus in zip(ranks, chosen, strict=False):
                pins[rank] = cpus
    return pins
