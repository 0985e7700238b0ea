"""The shape of a job, for every job."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from csrun.jobs.layout import JobLayout, pin_cpus

layouts = st.builds(
    lambda nodes, tasks, single, cyclic: JobLayout(nodes, tasks, None, min(single, nodes - 1), cyclic),
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(0, 11),
    st.booleans(),
)


@given(layouts)
def test_every_node_runs_its_number_of_tasks(layout: JobLayout) -> None:
    nodes = layout.nodes_of_tasks()
    assert len(nodes) == layout.num_tasks
    assert nodes[0] == 0
    counts = Counter(nodes)
    for node in range(layout.total_nodes):
        assert counts[node] == (1 if node < layout.single_task_nodes else layout.tasks_per_node)


@given(layouts)
def test_cyclic_changes_the_order_only(layout: JobLayout) -> None:
    block = JobLayout(layout.total_nodes, layout.tasks_per_node, None, layout.single_task_nodes)
    assert sorted(layout.nodes_of_tasks()) == list(block.nodes_of_tasks())


@given(st.integers(1, 8), st.integers(1, 8), st.integers(-10, 10), st.integers(1, 3))
def test_tasks_are_pinned_to_their_own_cpus_or_not_at_all(
    tasks: int, cpus: int, spare: int, stride: int
) -> None:
    machine = [stride * number for number in range(max(1, tasks * cpus + spare))]
    pins = pin_cpus(tasks, cpus, machine)
    if len(machine) < tasks * cpus:
        assert pins == ()
    else:
        assert [len(pin) for pin in pins] == [cpus] * tasks
        pinned = [cpu for pin in pins for cpu in pin]
        assert len(set(pinned)) == len(pinned)
        assert set(pinned) <= set(machine)
