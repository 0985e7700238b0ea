from __future__ import annotations

import json
from pathlib import Path

import pytest

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout, Recommendation, pin_cpus, read_recommendation, resolve_layout
from csrun.site import Site


def test_the_documented_example_has_14_tasks() -> None:
    layout = JobLayout(total_nodes=5, tasks_per_node=4, single_task_nodes=2)
    assert layout.num_tasks == 14
    assert layout.nodes_of_tasks() == (0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4)


def test_cyclic_deals_the_workers_round_robin_and_keeps_the_chief_on_node_0() -> None:
    assert JobLayout(3, 2, cyclic=True).nodes_of_tasks() == (0, 0, 1, 2, 1, 2)
    assert JobLayout(4, 2, single_task_nodes=2, cyclic=True).nodes_of_tasks() == (0, 1, 2, 3, 2, 3)


@pytest.mark.parametrize(("nodes", "single"), [(1, 1), (2, 2), (2, 5)])
def test_single_task_nodes_must_leave_a_node(nodes: int, single: int) -> None:
    with pytest.raises(UsageError, match=f"--single-task-nodes={single} with --total-nodes={nodes}"):
        JobLayout(nodes, 2, single_task_nodes=single)


SITE = Site(def_nodes=2, def_tasks_per_node=3, def_cpus_per_task=4)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (3, 4)),
        ({"tasks_per_node": 4}, (4, 4)),
        ({"tasks_per_node": 5}, (5, None)),
        ({"cpus_per_task": 5}, (3, 5)),
        ({"cpus_per_task": 99}, (1, 99)),
        ({"tasks_per_node": 7, "cpus_per_task": 9}, (7, 9)),
    ],
)
def test_missing_options_come_from_the_site_and_the_machine(
    given: dict[str, int], expected: tuple[int, int | None]
) -> None:
    layout = resolve_layout(SITE, machine_cpus=16, **given)
    assert layout.total_nodes == 2
    assert (layout.tasks_per_node, layout.cpus_per_task) == expected


def test_a_site_without_settings_leaves_the_cpus_open() -> None:
    assert resolve_layout(Site(), machine_cpus=2) == JobLayout(1, 2, None)


def test_tasks_are_pinned_to_disjoint_cpus_when_all_fit() -> None:
    assert pin_cpus(2, 2, [0, 2, 5, 7, 9]) == ((0, 2), (5, 7))


def test_nothing_is_pinned_when_not_all_fit_or_nothing_was_asked() -> None:
    assert pin_cpus(3, 2, range(5)) == ()
    assert pin_cpus(3, None, range(64)) == ()


def test_the_layout_is_read_and_everything_else_ignored(tmp_path: Path) -> None:
    layout = {"nodes": 3, "tasks_per_node": 2, "cpus_per_task": 8, "headroom": 1.2}
    (tmp_path / "a.json").write_text(json.dumps({"recommendation": layout, "input_bound": False}))
    assert read_recommendation(tmp_path / "a.json") == Recommendation(3, 2, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "no usable recommendation.nodes, recommendation.tasks_per_node"),
        ('{"recommendation": {"nodes": 1, "tasks_per_node": 2}}', "no usable recommendation.cpus_per_task;"),
        (
            '{"recommendation": {"nodes": true, "tasks_per_node": 2, "cpus_per_task": 1}}',
            "recommendation.nodes;",
        ),
        ('{"recommendation": {"nodes": 1, "tasks_per_node": 0, "cpus_per_task": 1}}', "tasks_per_node;"),
        (
            '{"recommendation": {"nodes": 1, "tasks_per_node": 2, "cpus_per_task": 1}, "format_version": 2}',
            "has format_version 2; expected 1",
        ),
        ('{"format_version": "1"}', 'has format_version "1"; expected 1'),
        ('{"format_version": true}', "has format_version true; expected 1"),
    ],
)
def test_incomplete_recommendations_are_refused_with_the_missing_part(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match="cs_input_analyzer") as caught:
        read_recommendation(tmp_path / "a.json")
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.json: No such file"):
        read_recommendation(tmp_path / "none.json")
