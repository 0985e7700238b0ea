"""Which tasks the launcher pins itself."""

from __future__ import annotations

from csrun.agent.job_loop import pin_tasks
from csrun.agent.protocol import Hello


def hello(rank: int, node: str, cpus: tuple[int, ...], cpus_on_node: int) -> Hello:
    return Hello(rank, node, 1, "7", "0", cpus, cpus_on_node, "", "")


def test_tasks_of_a_node_get_disjoint_cpus() -> None:
    tasks = [hello(rank, node, (0, 1, 4, 5), 4) for rank, node in enumerate(["a", "b", "a"])]
    assert pin_tasks((2, 2, 2), tasks) == [(0, 1), (0, 1), (4, 5)]


def test_tasks_that_the_scheduler_has_pinned_keep_their_cpus() -> None:
    tasks = [hello(0, "a", (0, 1), 4), hello(1, "a", (2, 3), 4)]
    assert pin_tasks((1, 1), tasks) == [(), ()]


def test_on_a_shared_node_nobody_knows_whose_cpus_are_whose() -> None:
    tasks = [hello(0, "a", (0, 1, 2, 3), 2), hello(1, "a", (0, 1, 2, 3), 2)]
    assert pin_tasks((1, 1), tasks) == [(), ()]


def test_tasks_that_do_not_fit_or_want_nothing_are_unchanged() -> None:
    tasks = [hello(rank, "a", (0, 1), 2) for rank in range(2)]
    assert pin_tasks((2, 2), tasks) == [(), ()]
    assert pin_tasks((None, None), tasks) == [(), ()]
