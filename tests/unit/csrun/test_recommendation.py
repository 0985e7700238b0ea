"""The layout of an input analysis, and files that hold none."""

import json
from pathlib import Path

import pytest

from cs_toolkit.errors import UsageError
from csrun.recommendation import Recommendation, read_recommendation


def test_the_layout_is_read_and_everything_else_left_alone(tmp_path: Path) -> None:
    layout = {"nodes": 3, "tasks_per_node": 2, "cpus_per_task": 8, "headroom": 1.2}
    (tmp_path / "a.json").write_text(json.dumps({"recommendation": layout, "input_bound": False}))
    assert read_recommendation(tmp_path / "a.json") == Recommendation(3, 2, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
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
def test_what_is_missing_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match="cs_input_analyzer") as caught:
        read_recommendation(tmp_path / "a.json")
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.json: No such file"):
        read_recommendation(tmp_path / "none.json")
