"""JSON, text and page of one made-up analysis."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape
from rich.console import Console

from csrun.recommendation import Recommendation, read_recommendation
from input_analyzer.analysis import (
    Analysis,
    Component,
    ContentionModel,
    Finding,
    Gain,
    Measurement,
    Node,
    StageCost,
    Subject,
    Target,
)
from input_analyzer.bottleneck import bottleneck_of
from input_analyzer.rate_model import Point, RateModel, fit
from input_analyzer.recommend import Limits, predictions, recommend
from input_analyzer.report.chart import chart
from input_analyzer.report.definitions import DEFINITIONS
from input_analyzer.report.page import render_html
from input_analyzer.report.text import print_report
from input_analyzer.report.words import percent, rate, size

STAGES = (
    StageCost("TFRecordDataset", "TFRecordDataset", 0, 12.0, 3.0, 9.0, False, "data.py:12"),
    StageCost("map", "map", 1, 220.0, 215.0, 5.0, False, "data.py:13"),
    StageCost("cache", "cache", 2, 900.0, 900.0, 0.0, True, "data.py:14"),
    StageCost("batch", "batch", 3, 7.0, 7.0, 0.0, False, "data.py:16"),
    StageCost("prefetch", "prefetch", 4, source="data.py:16"),
)
GAIN = Gain("measured", "1.82 times the rate with 2 CPUs (1.70 to 1.95)", 1.82, 1.7, 1.95, 2)
FINDING = Finding(
    "shard-missing", "warning", "map", "data.py:12", "reads <b>all</b> records", "shard(n, i)", GAIN
)


def analysis(target: float | None) -> Analysis:
    truth = RateModel(20e-6, 300e-6, sigma=0.03)
    measurements = tuple(
        Measurement(
            n,
            c,
            truth.law(n, c),
            0.95 * truth.law(n, c),
            1.05 * truth.law(n, c),
            bytes_per_sample=3140.0,
            memory_per_task_bytes=700 << 20,
            cpu_us_per_sample=312.0,
        )
        for n, c in [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]
    )
    model = fit([Point(m.tasks, m.cpus_per_task, m.samples_per_s) for m in measurements])
    limits = Limits(2, 4, 16 << 30, 700 << 20, (1, 2))
    layouts = predictions(model, limits)
    found = recommend(layouts, target)
    curves = {c: tuple((n, model.rate(n, c)) for n in range(1, 4 // c + 1)) for c in (1, 2)}
    return Analysis(
        subject=Subject(
            ("python", "run.py", "--mode=train"), "train_input_fn", "data.py:10", "tensorflow", 256,
            (Component("features", "float32", (256, 784)),), 5000,
        ),
        node=Node("node1", 4, 16 << 30),
        available_nodes=2,
        stages=STAGES,
        bottleneck=bottleneck_of(STAGES),
        findings=(FINDING,),
        measurements=measurements,
        model=ContentionModel(model.formula, model.relative_error, curves),
        predictions=layouts,
        recommendation=found,
        target=None if target is None else Target(target, "given with --target-samples-per-s"),
        input_bound=None if target is None else found.samples_per_s < target,
        applied_gain=replace(GAIN, text="2.50 times the rate with 2 CPUs (2.30 to 2.70)"),
        notes=("One node was measured.",),
        elapsed_s=42.0,
    )  # fmt: skip


def text_of(found: Analysis) -> str:
    console = Console(width=120, no_color=True, highlight=False)
    with console.capture() as captured:
        print_report(found, console)
    return captured.get()


def test_the_json_has_the_documented_members_and_csrun_wse_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(analysis(9000.0).to_json()))
    found = json.loads(file.read_text())
    assert found["format_version"] == 1
    layout = found["recommendation"]
    assert read_recommendation(file) == Recommendation(
        layout["nodes"], layout["tasks_per_node"], layout["cpus_per_task"]
    )
    assert found["bottleneck"] == {
        "stage": "map",
        "op": "map",
        "reason": "220 us of computing per sample, 92 % of the time of all stages; without it a task with "
        "1 CPU could be 12.6 times as fast",
    }
    assert [stage["position"] for stage in found["stages"]] == [0, 1, 2, 3, 4]
    assert {"name", "op", "position", "self_time_us_per_sample"} <= set(found["stages"][0])
    assert {"id", "severity", "op", "source", "message", "recommended"} <= set(found["findings"][0])
    assert found["findings"][0]["gain"] == {
        "kind": "measured",
        "text": "1.82 times the rate with 2 CPUs (1.70 to 1.95)",
        "times": 1.82,
        "low": 1.7,
        "high": 1.95,
        "cpus": 2,
        "at_most": False,
    }
    assert {"tasks", "cpus_per_task", "samples_per_s", "low", "high"} <= set(found["measurements"][0])
    assert set(found["predictions"][0]) == {"nodes", "tasks_per_node", "cpus_per_task", "samples_per_s"}
    assert found["target_samples_per_s"] == 9000
    assert found["input_bound"] is False


def test_cpu_time_in_no_stage_is_told() -> None:
    found = replace(analysis(None), unaccounted_cpu_us_per_sample=73.0)
    said = "CPU time in no stage: 73 us per sample, beside 225 us of the stages"
    assert said in text_of(found)
    assert said in render_html(found)
    assert found.to_json()["unaccounted_cpu_us_per_sample"] == 73.0
    assert "CPU time in no stage" in DEFINITIONS
    assert "CPU time in no stage:" not in text_of(analysis(None)) + render_html(analysis(None))


def test_that_nothing_was_found_is_told() -> None:
    fine = replace(analysis(None), findings=())
    assert "Input Function Report\nnothing to improve" in text_of(fine)
    assert "Nothing to improve." in render_html(fine)
    unseen = replace(fine, stages=(), unaccounted_cpu_us_per_sample=None, bottleneck=None)
    for report in (text_of(unseen), render_html(unseen)):
        assert "ot looked at: the stages are not known" in report
        assert "othing to improve" not in report


def test_a_model_through_all_points_is_not_told_by_its_rounding() -> None:
    found = analysis(None)
    exact = replace(found, model=replace(found.model, relative_error=5e-12))
    assert "it goes through all measured points." in render_html(exact)
    loose = replace(found, model=replace(found.model, relative_error=0.031))
    assert "it is 3.1 % away from the measurements" in render_html(loose)


def test_the_documentation_names_every_member_of_the_json() -> None:
    text = (Path(__file__).parents[3] / "docs/input-analyzer.md").read_text(encoding="utf-8")
    for name, value in analysis(9000.0).to_json().items():
        assert f"`{name}" in text, name
        first = value[0] if isinstance(value, list) and value else value
        for member in first if isinstance(first, dict) else ():
            assert f"`{member}`" in text, f"{name}.{member}"
    for term in DEFINITIONS:
        assert term.lower() in text.lower(), term


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (9000.0, "The training will not wait for input: "),
        (1.6e6, "Even the best layout of 2 nodes reaches "),
        (None, "Without a target nobody can say whether that is enough"),
    ],
)
def test_text_and_page_say_plainly_whether_the_input_is_fast_enough(target: float | None, said: str) -> None:
    found = analysis(target)
    assert said in " ".join(text_of(found).split())
    assert said in render_html(found)
    once = int(bool(found.input_bound))
    assert text_of(found).count("The training will be input-bound") == once
    assert render_html(found).count("<h1>The training will be input-bound</h1>") == once


def test_text_and_page_say_what_mending_gives() -> None:
    each = "measured: 1.82 times the rate with 2 CPUs (1.70 to 1.95)"
    together = "together: measured: 2.50 times the rate with 2 CPUs (2.30 to 2.70)"
    shown = " ".join(text_of(analysis(None)).split())
    assert f"gain: {each}" in shown
    assert f"All that --apply mends, {together}" in shown
    page = render_html(analysis(None))
    assert f"Gain: {each}" in page
    assert together in page


def test_text_and_page_say_what_a_cold_first_epoch_read_from_the_disk() -> None:
    found = analysis(None)
    assert "disk/sample" not in text_of(found)
    first, *others = found.measurements
    first = replace(
        first, first_epoch_samples_per_s=1234.0, first_epoch_disk_bytes_per_sample=3333.0, cold=True
    )
    found = replace(found, measurements=(first, *others))
    shown = " ".join(text_of(found).split())
    assert "disk/sample" in shown
    assert "1,234 (cold) 3,333" in shown
    page = render_html(found)
    assert "1,234 (cold)</td>" in page
    assert '<td class="number">3,333</td>' in page
    assert found.to_json()["measurements"][0]["first_epoch_disk_bytes_per_sample"] == 3333


def test_the_text_ends_with_what_to_type() -> None:
    found = analysis(9000.0)
    layout = found.recommendation.layout
    lines = [line.rstrip() for line in text_of(found).rstrip().splitlines()]
    assert lines[-5:] == [
        "Recommended",
        f"nodes: {layout.nodes}",
        f"tasks_per_node: {layout.tasks_per_node}",
        f"cpus_per_task: {layout.cpus_per_task}",
        f"  csrun_wse --total-nodes={layout.nodes} --tasks-per-node={layout.tasks_per_node} "
        f"--cpus-per-task={layout.cpus_per_task} python run.py --mode=train --cs_ip=IP:PORT",
    ]


def test_the_page_needs_nothing_else_and_escapes_what_the_program_says() -> None:
    page = render_html(analysis(9000.0))
    assert "reads &lt;b&gt;all&lt;/b&gt; records" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=", page)
    assert "<script" not in page
    for term, text in DEFINITIONS.items():
        assert term in page
        assert str(escape(text)) in page
    assert page == render_html(analysis(9000.0))


def test_a_target_far_above_does_not_press_the_curves_to_the_axis() -> None:
    near, far = chart(analysis(9000.0)), chart(analysis(1.6e6))
    assert near.target_y is not None
    assert far.target_y is None
    assert far.target_text == "target 1,600,000"
    highest = min(mark.y for curve in far.curves for mark in curve.marks)
    assert highest < 250


def test_points_of_the_measurements_lie_on_the_curve_of_the_model() -> None:
    for curve in chart(analysis(None)).curves:
        line = {}
        for pair in curve.path.removeprefix("M").split("L"):
            x, y = map(float, pair.split())
            line[x] = y
        for mark in curve.marks:
            assert line[round(mark.x, 1)] == pytest.approx(mark.y, abs=2)


def test_no_bottleneck_without_times_and_none_that_only_the_first_epoch_has() -> None:
    assert bottleneck_of([replace(stage, self_time_us_per_sample=None) for stage in STAGES]) is None
    assert bottleneck_of(STAGES[2:]) == bottleneck_of(STAGES[3:])


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (rate(1559633.2), "1,559,633"),
        (rate(12.2511), "12.25"),
        (size(500), "500 bytes"),
        (size(700 << 20), "700 MiB"),
        (size(3.5 * 2**30), "3.5 GiB"),
        (percent(0.85), "85 %"),
        (percent(0.0061), "0.61 %"),
        (percent(-0.935), "-94 %"),
    ],
)
def test_figures_for_readers(shown: str, text: str) -> None:
    assert shown == text
