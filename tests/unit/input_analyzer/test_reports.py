"""JSON, text and page of one made-up analysis."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape
from rich.console import Console

from csrun.errors import CsrunError
from csrun.jobs.layout import Recommendation, read_recommendation
from input_analyzer.analysis import (
    Analysis,
    Component,
    ContentionModel,
    Layout,
    Measurement,
    Node,
    Subject,
    Target,
)
from input_analyzer.analyze import Request
from input_analyzer.commands import write_reports
from input_analyzer.conclusions import Limits, add_interval, find_bottleneck, predict_layouts, recommend
from input_analyzer.measure.copies import Launch
from input_analyzer.rate_model import Point, RateModel, fit
from input_analyzer.report.page import DEFINITIONS, chart, render_html
from input_analyzer.report.text import print_report
from input_analyzer.report.wording import (
    above,
    measure_again,
    of_target,
    time_rows,
    title,
    training_command,
    unsettled_reasons,
    verdict,
)
from input_rules.findings import Finding, Gain
from input_rules.formatting import format_bytes, format_number, format_percent
from input_rules.throughput import StageCost

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
    layouts = predict_layouts(model, limits)
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
        bottleneck=find_bottleneck(STAGES),
        findings=(FINDING,),
        measurements=measurements,
        model=ContentionModel(model.formula, model.relative_error, curves),
        predictions=layouts,
        recommendation=found,
        target=None if target is None else Target(target, "given with --target-samples-per-s"),
        input_bound=None if target is None else found.samples_per_s < target,
        combination=("shard-missing", "prefetch-missing"),
        gain_together=replace(GAIN, text="2.50 times the rate with 2 CPUs (2.30 to 2.70)"),
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


def test_cpu_time_outside_of_stages_is_reported() -> None:
    found = replace(analysis(None), unaccounted_cpu_us_per_sample=73.0)
    said = "CPU time outside of stages: 73 us per sample, in addition to 225 us in stages"
    assert said in text_of(found)
    assert said in render_html(found)
    assert found.to_json()["unaccounted_cpu_us_per_sample"] == 73.0
    assert "CPU time outside of stages" in DEFINITIONS
    assert "CPU time outside of stages:" not in text_of(analysis(None)) + render_html(analysis(None))


def test_bars_have_the_length_of_their_share_and_time_in_no_stage_is_one() -> None:
    found = replace(analysis(None), unaccounted_cpu_us_per_sample=73.0, unaccounted_wait_us_per_sample=41.0)
    rows = {row.name: row for row in time_rows(found)}
    total = 12 + 220 + 7 + 73 + 41
    assert rows["map"].share == pytest.approx(220 / total)
    assert rows["map"].computing_share == pytest.approx(215 / total)
    assert rows["no stage: overhead"].share == pytest.approx(73 / total)
    assert rows["no stage: waiting"].share == pytest.approx(41 / total)
    assert rows["no stage: waiting"].computing_share == 0
    assert rows["cache"].share is None, "it takes time in the first epoch only"
    assert sum(row.share or 0.0 for row in rows.values()) == pytest.approx(1)
    page = render_html(found)
    bars = [
        (float(solid), float(striped))
        for solid, striped in re.findall(
            r'<i style="width:([\d.]+)%"></i><i class="waits" style="width:([\d.]+)%">', page
        )
    ]
    assert len(bars) == 5, "one for each part whose share is known"
    assert sum(map(sum, bars)) == pytest.approx(100, abs=0.1)
    assert found.to_json()["unaccounted_wait_us_per_sample"] == 41.0
    assert re.search(r"no stage: waiting +41 +█+ 12 %", text_of(found))
    assert [row for row in time_rows(analysis(None)) if row.no_stage] == []


def test_a_withdrawn_recommendation_is_not_shown_as_one() -> None:
    gain = replace(GAIN, times=0.49, low=0.36, high=0.65)
    found = replace(
        analysis(None),
        findings=(replace(FINDING, gain=gain, withdrawn=True),),
        combination=(),
        gain_together=None,
    )
    said = "withdrawn: measured 0.49 times as fast with 2 CPUs (0.36 to 0.65)"
    text = " ".join(text_of(found).split())
    assert said in text
    assert f"recommended: {FINDING.recommended}" not in text
    assert "None of the tested changes makes the input faster." in text
    page = render_html(found)
    assert said in page
    assert f"<s>Recommended: <code>{FINDING.recommended}</code></s>" in page
    assert found.to_json()["findings"][0]["withdrawn"] is True
    assert found.to_json()["recommended_changes"] == []


BUSY = Measurement(1, 1, 100.0, 98.0, 102.0, other_cpus=1.9)
UNSTEADY = Measurement(2, 1, 100.0, 60.0, 140.0, settled=False)


@pytest.mark.parametrize(
    ("measurements", "reasons", "again"),
    [
        ((replace(BUSY, other_cpus=0.2),), (), None),
        (
            (BUSY, replace(UNSTEADY, settled=True)),
            ("other programs kept up to 1.9 of 2 CPUs busy",),
            "Measure again on a node without other programs (for example in an exclusive job of Slurm): "
            "cs_input_analyzer python run.py",
        ),
        (
            (replace(BUSY, other_cpus=0.0), UNSTEADY),
            ("1 of 2 rates did not settle in time",),
            "Measure again: cs_input_analyzer --seconds=16 python run.py",
        ),
    ],
)
def test_measurements_are_trusted_if_they_are_settled_and_nothing_else_runs(
    measurements: tuple[Measurement, ...], reasons: tuple[str, ...], again: str | None
) -> None:
    assert unsettled_reasons(measurements, 2) == reasons
    if reasons:
        assert measure_again(measurements, 2, 4.0, ("python", "run.py")) == again
    assert unsettled_reasons((replace(BUSY, other_cpus=1.0),), 64) == (), "one of 64 CPUs changes little"


def test_the_same_analysis_is_measured_again() -> None:
    launch = Launch((), {}, 20.0, None, "here")
    request = Request(
        ("run.py",), launch, (0, 1), 3, (1, 2), Target(5e4, "given"), cold=(Path("/data"), Path("/more"))
    )
    assert measure_again((UNSTEADY,), 2, 4.0, request.command, request.flags) == (
        "Measure again: cs_input_analyzer --seconds=16 --available-nodes=3 --cpus-per-task=1,2 "
        "--target-samples-per-s=50000 --cold=/data --cold=/more run.py"
    )


@pytest.mark.parametrize("target", [9000.0, 1.6e6, None])
def test_a_verdict_from_unsettled_measurements_says_so_in_its_headline(target: float | None) -> None:
    settled = analysis(target)
    found = replace(
        settled,
        unsettled=unsettled_reasons((BUSY, UNSTEADY), 2),
        measure_again=measure_again((BUSY, UNSTEADY), 2, 4.0, ("python", "run.py")),
    )
    assert title(found).lower() == f"unsettled: {title(settled).lower()}"
    for report in (" ".join(text_of(found).split()), render_html(found)):
        assert title(found) in report
        assert (
            "The measurements are unsettled: other programs kept up to 1.9 of 2 CPUs busy and 1 of 2 rates "
            "did not settle in time. Measure again on a node without other programs"
        ) in report
    said = found.to_json()
    assert (said["settled"], settled.to_json()["settled"]) == (False, True)
    assert len(said["unsettled_reasons"]) == 2
    assert said["measure_again"].endswith("cs_input_analyzer --seconds=16 python run.py")
    assert settled.to_json()["measure_again"] is None


def test_an_empty_result_is_reported() -> None:
    fine = replace(analysis(None), findings=())
    assert "Input Function Report\nnothing to improve" in text_of(fine)
    assert "Nothing to improve." in render_html(fine)
    unseen = replace(fine, stages=(), unaccounted_cpu_us_per_sample=None, bottleneck=None)
    for report in (text_of(unseen), render_html(unseen)):
        assert "ot available: the stages are unknown" in report
        assert "othing to improve" not in report


def test_a_model_through_all_points_is_recognized_despite_rounding() -> None:
    found = analysis(None)
    exact = replace(found, model=replace(found.model, relative_error=5e-12))
    assert "it passes through all measured points." in render_html(exact)
    loose = replace(found, model=replace(found.model, relative_error=0.031))
    assert "it deviates from the measurements by 3.1 %" in render_html(loose)


def test_the_documentation_names_every_member_of_the_json() -> None:
    page = Path(__file__).parents[3] / "docs/reference/input-analyzer-reference.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
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
        (9000.0, "Training will not wait for input: "),
        (1.6e6, "Even the best layout of 2 nodes reaches only "),
        (None, "Without a target rate it is unknown whether this is enough"),
    ],
)
def test_text_and_page_say_plainly_whether_the_input_is_fast_enough(target: float | None, said: str) -> None:
    found = analysis(target)
    assert said in " ".join(text_of(found).split())
    assert said in render_html(found)
    once = int(bool(found.input_bound))
    assert text_of(found).count("Training will be input-bound") == once
    assert render_html(found).count("<h1>Training will be input-bound</h1>") == once


def test_text_and_page_state_the_gain_of_a_change() -> None:
    each = "measured: 1.82 times the rate with 2 CPUs (1.70 to 1.95)"
    together = (
        "Recommended changes: shard-missing + prefetch-missing; "
        "measured: 2.50 times the rate with 2 CPUs (2.30 to 2.70)."
    )
    shown = " ".join(text_of(analysis(None)).split())
    assert f"gain: {each}" in shown
    assert together in shown
    page = render_html(analysis(None))
    assert f"Gain: {each}" in page
    assert together in page


def test_text_and_page_state_the_disk_reads_of_a_cold_first_epoch() -> None:
    found = analysis(None)
    assert "from disk" not in text_of(found)
    first, *others = found.measurements
    first = replace(
        first, first_epoch_samples_per_s=1234.0, first_epoch_disk_bytes_per_sample=3333.0, cold=True
    )
    found = replace(found, measurements=(first, *others))
    shown = " ".join(text_of(found).split())
    assert "from disk" in shown
    assert "1,234 (cold) 3,333" in shown
    page = render_html(found)
    assert "1,234 (cold)</td>" in page
    assert '<td class="number">3,333</td>' in page
    assert found.to_json()["measurements"][0]["first_epoch_disk_bytes_per_sample"] == 3333


def test_the_text_ends_with_the_command_to_type() -> None:
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


def test_the_page_is_self_contained_and_escapes_texts_of_the_program() -> None:
    page = render_html(analysis(9000.0))
    assert "reads &lt;b&gt;all&lt;/b&gt; records" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=", page)
    assert "<script" not in page
    for term, text in DEFINITIONS.items():
        assert term in page
        assert str(escape(text)) in page
    assert page == render_html(analysis(9000.0))


def test_the_plot_shows_files_that_cannot_be_shared_out_evenly() -> None:
    found = analysis(None)
    uneven = replace(found, model=replace(found.model, files=5))
    fitted, counting = chart(found).curves[0].path, chart(uneven).curves[0].path
    assert (fitted.count("L"), counting.count("L")) == (7, 5), "no more workers than files"
    three = dict(found.model.curves[1])[3] * 5 / 6  # one of them has one file, the others two
    ring = replace(found.recommendation, layout=Layout(1, 4, 1), samples_per_s=three)
    plot = chart(replace(uneven, recommendation=ring))
    assert plot.chosen is not None
    assert f"{plot.chosen.x:.1f} {plot.chosen.y:.1f}" in plot.curves[0].path, "the ring is on the line"
    assert "read 5 files: if these cannot be distributed evenly, only the fraction" in render_html(uneven)
    assert "distributed evenly, only the fraction of the rate" not in render_html(found)


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
    assert find_bottleneck([replace(stage, self_time_us_per_sample=None) for stage in STAGES]) is None
    assert find_bottleneck(STAGES[2:]) == find_bottleneck(STAGES[3:])


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_number(1559633.2), "1,559,633"),
        (format_number(12.2511), "12.25"),
        (format_bytes(500), "500 bytes"),
        (format_bytes(700 << 20), "700 MiB"),
        (format_bytes(3.5 * 2**30), "3.5 GiB"),
        (format_percent(0.85), "85 %"),
        (format_percent(0.0061), "0.61 %"),
        (format_percent(-0.935), "-94 %"),
    ],
)
def test_figures_for_readers(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize("broken", ["--json", "--html"])
def test_one_report_that_cannot_be_written_does_not_keep_the_other(tmp_path: Path, broken: str) -> None:
    full, fine = Path("/dev/full"), tmp_path / "fine"
    files = (full, fine) if broken == "--json" else (fine, full)
    with pytest.raises(CsrunError, match="/dev/full cannot be written") as failure:
        write_reports(analysis(None), *files)
    assert failure.value.exit_code == 1
    assert fine.read_text().startswith("<!doctype html>" if broken == "--json" else "{")


LONG = "/home/user/project/model_dir/with/a/long/name/cs_0123456789abcdef/compile_report.json"


def lines_of(found: Analysis, width: int) -> list[str]:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as captured:
        print_report(found, console)
    return [line.rstrip() for line in captured.get().splitlines()]


def wide(found: Analysis) -> Analysis:
    """Rates of seven figures, a first epoch, deep folders, a note, one measurement that is not settled."""
    measurements = [
        replace(
            one,
            samples_per_s=1000 * one.samples_per_s,
            low=980 * one.low,
            high=1020 * one.high,
            settled=number != 1,
            cold=True,
            first_epoch_samples_per_s=123456.7 if one.tasks == 1 else None,
            first_epoch_disk_bytes_per_sample=3140.0 if one.tasks == 1 else 5555.0,
        )
        for number, one in enumerate(found.measurements)
    ]
    stages = [replace(one, source=f"models/fc_mnist/tf/{'deep/' * 6}data.py:12") for one in found.stages]
    return replace(
        found,
        measurements=tuple(measurements),
        stages=tuple(stages),
        target=found.target and replace(found.target, origin=f"estimated for the wafer in {LONG}"),
        notes=(
            "A note that is longer than a line of an ordinary terminal, which has 80 columns and no more.",
        ),
    )


def test_a_terminal_of_80_columns_breaks_no_word() -> None:
    found = wide(analysis(9000.0))
    lines = lines_of(found, 80)
    too_wide = [line for line in lines[:-1] if len(line) > 80]
    assert [line.strip() for line in too_wide] == [f"{LONG}."], "a path stays whole, to be copied"
    words = {word for line in lines for word in line.split()}
    assert {"samples/s", "interval", "epoch", "sample", "memory"} <= words
    for one in found.measurements:
        assert any(f"{format_number(one.low)} to {format_number(one.high)}" in line for line in lines)
    assert "models/fc_mnist/tf/deep/deep/deep/" in words, "it is broken after a slash"
    assert any("█████████ 92 % " in line for line in lines), "a path leaves room for bars"
    assert sum(line.strip().startswith("<- bottleneck ") for line in lines) == 1
    assert "- A note that is longer than a line of an ordinary terminal, which has 80" in lines
    assert "  columns and no more." in lines
    plain = lines_of(analysis(9000.0), 80)
    assert sum("tasks" in line.split() and "interval" in line for line in plain) == 1, "there is one table"


def test_predicted_layouts_fit_on_60_columns() -> None:
    lines = lines_of(analysis(9000.0), 60)
    table = lines[lines.index("Predicted") : lines.index("Notes")]
    assert max(map(len, table)) <= 60
    assert {"nodes", "workers", "samples/s", "target"} <= {word for line in table for word in line.split()}


def test_times_below_a_nanosecond_are_noise() -> None:
    found = analysis(None)
    tiny = replace(found.stages[0], self_time_us_per_sample=5.584e-5, cpu_us_per_sample=5.584e-5)
    found = replace(found, stages=(tiny, *found.stages[1:]))
    (line,) = (line for line in lines_of(found, 120) if line.strip().startswith("TFRecordDataset"))
    assert line.split()[1:6] == ["<", "0.001", "<", "0.1", "%"]
    assert "&lt; 0.001</td>" in render_html(found)
    assert "&lt; 0.1 %</td>" in render_html(found)


def test_lines_of_a_finding_hang() -> None:
    found = analysis(None)
    (finding,) = found.findings
    long = replace(finding, message="word " * 30, recommended="shard " * 20)
    lines = lines_of(replace(found, findings=(long,)), 80)
    begin = next(i for i, line in enumerate(lines) if line.startswith("warning shard-missing"))
    shown = lines[begin + 1 : begin + 6]
    assert [len(line) - len(line.lstrip()) for line in shown] == [2, 2, 2, 4, 2]


def test_unsettled_rates_are_marked() -> None:
    text = "\n".join(lines_of(wide(analysis(None)), 120))
    assert text.count(" *\n") + text.count(" * ") == 1
    assert "\n* unsettled: it needed more time, see the notes below\n" in text
    assert "unsettled" not in "\n".join(lines_of(analysis(None), 120))


def test_the_figures_are_defined_somewhere() -> None:
    assert any(
        "docs/reference/input-analyzer-reference.md (Figures)" in line
        for line in lines_of(analysis(None), 120)
    )


def test_what_was_paged_in_without_a_first_epoch_is_not_shown() -> None:
    found = analysis(None)
    read = [replace(one, first_epoch_disk_bytes_per_sample=1553.0) for one in found.measurements]
    found = replace(found, measurements=tuple(read))
    assert "1,553" not in "".join(lines_of(found, 120)) + render_html(found)
    assert "first epoch" not in "".join(lines_of(found, 120)).partition("Stages")[0]
    header = render_html(found).partition("measured-heading")[2]
    assert "First epoch</th>" not in header.partition("</thead>")[0]


def test_cpu_time_of_the_stages_may_be_all() -> None:
    found = replace(analysis(None), unaccounted_cpu_us_per_sample=0.0)
    assert any(
        line.startswith("CPU time outside of stages: none; a copy used no more than the 225 us per sample of")
        for line in lines_of(found, 120)
    )


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_number(0.00001234), "0.00001234"),
        (format_number(12345.6), "12,346"),
        (format_number(0), "0"),
        (format_percent(118.31), "11,831 %"),
        (format_percent(1e-9), "< 0.0001 %"),
        (format_percent(0.9999), "> 99 %"),
        (format_percent(1.0), "100 %"),
        (of_target(0.85), "85 %"),
        (of_target(119.3), "119 times"),
        (above(0.077), "7.7 % more than"),
        (above(118.3), "119 times"),
        (above(0.0996), "9.9 % more than"),
        (above(0.0), "just"),
        (format_number(999.96), "1,000"),
    ],
)
def test_no_figure_needs_to_be_counted_off(shown: str, text: str) -> None:
    assert shown == text


def with_rate(target: float, ratio: float, low: float, high: float) -> Analysis:
    """Return an analysis whose best rate is a multiple of the target, with the ends of its interval."""
    found = analysis(target)
    chosen = replace(
        found.recommendation,
        samples_per_s=ratio * target,
        headroom=ratio - 1,
        utilization=min(1.0, ratio),
        low=low * target,
        high=high * target,
    )
    return replace(found, recommendation=chosen, input_bound=ratio < 1)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "headline", "said"),
    [
        (1.5, 1.4, 1.6, "The input is fast enough", "Training will not wait for input: "),
        (1.5, 0.9, 2.1, "The input is probably fast enough", "uncertain, as the measured interval"),
        (1.05, 0.9, 1.2, "The input is probably fast enough", "less than the 10 % reserved"),
        (1.07, 1.01, 1.1, "The input is only just fast enough", "less than the 10 % reserved"),
        (0.92, 0.8, 1.1, "Training will probably be input-bound", " 7,200 to 9,900 samples/s."),
        (0.9996, 0.999, 0.9999, "Training will be input-bound", "to be busy nearly all of the time."),
        (0.92, 0.9, 0.95, "Training will be input-bound", "expected to be busy 92 % of the time."),
        (120.0, 110.0, 130.0, "The input is fast enough", ", 120 times the 9,000 samples/s"),
    ],
)
def test_a_verdict_is_as_sure_as_what_was_measured(
    ratio: float, low: float, high: float, headline: str, said: str
) -> None:
    found = with_rate(9000.0, ratio, low, high)
    assert title(found) == headline
    assert said in verdict(found)
    assert ("uncertain" in verdict(found)) == (low < 1 <= high)
    assert f"<h1>{headline}</h1>" in render_html(found)


def test_the_interval_is_that_of_the_nearest_measurement_and_of_the_model() -> None:
    found = analysis(9000.0)  # all are within 5 %
    exact = add_interval(found.recommendation, found.measurements, 0.0)
    rate_ = found.recommendation.samples_per_s
    assert (exact.low, exact.high) == (pytest.approx(0.95 * rate_), pytest.approx(1.05 * rate_))
    loose = add_interval(found.recommendation, found.measurements, 0.12)
    assert (loose.low, loose.high) == (pytest.approx(0.87 * rate_), pytest.approx(1.13 * rate_))
    assert (found.recommendation.layout.tasks_per_node, found.recommendation.layout.cpus_per_task) == (3, 1)
    far = [
        one if (one.tasks, one.cpus_per_task) in ((2, 1), (4, 1)) else replace(one, low=0.0)
        for one in found.measurements
    ]
    assert add_interval(found.recommendation, far, 0.0) == exact, "the others do not count"
    looser = [replace(one, low=0.0) if one.tasks == 4 else one for one in found.measurements]
    low = add_interval(found.recommendation, looser, 0.0).low
    assert low is not None
    assert low < 0.5 * rate_, "3 tasks are as near to 2 as to 4, so the looser one counts"
    near = [replace(one, low=0.0) if one.cpus_per_task == 1 else one for one in found.measurements]
    assert add_interval(found.recommendation, near, 0.0).low == 0
    assert found.to_json()["recommendation"]["low"] is None
    assert replace(found, recommendation=exact).to_json()["recommendation"]["high"] == exact.high


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (("python", "run.py", "--mode=train"), " python run.py --mode=train --cs_ip=IP:PORT"),
        (("python", "run.py", "-m", "compile_only"), " python run.py -m train --cs_ip=IP:PORT"),
        (("python", "run.py", "--compile_only"), " python run.py --cs_ip=IP:PORT"),
        (("python", "twice.py"), " python twice.py"),
        (("python", "twice.py", "--train_dir=x"), " python twice.py --train_dir=x"),
        (("./run.py",), " ./run.py"),
        (("data.py:train_input",), " python run.py --mode=train --cs_ip=IP:PORT"),
    ],
)
def test_an_address_is_given_to_programs_that_are_known_to_take_it(
    command: tuple[str, ...], ending: str
) -> None:
    found = analysis(None)
    found = replace(found, subject=replace(found.subject, command=command))
    assert training_command(found).partition("--cpus-per-task=")[2][1:] == ending
    first = ", the input of the program's first training run or compile"
    assert (
        (first in lines_of(found, 200)[1])
        == (first in render_html(found))
        == (len(command) > 1 or ":" not in command[0])
    )


class Seen(HTMLParser):
    """Classes and names of a page, and the elements around its tables."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.scrolling: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        classes = (values.get("class") or "").split()
        self.names |= {f".{name}" for name in classes} | {f"#{values.get('id')}"}
        if "wide-table" in classes:
            self.scrolling.append(values)


def seen(page: str) -> Seen:
    parser = Seen()
    parser.feed(page)
    return parser


def test_scrollable_parts_can_be_scrolled_with_the_keyboard() -> None:
    found = seen(render_html(analysis(9000.0))).scrolling
    assert len(found) == 4
    for attributes in found:
        assert attributes["tabindex"] == "0"
        assert attributes["role"] == "region"
        assert attributes["aria-labelledby"]


def test_a_path_on_the_page_is_broken_after_a_slash() -> None:
    assert "<code>models/<wbr>fc_mnist/<wbr>tf/<wbr>deep/" in render_html(wide(analysis(None)))


def test_without_a_target_there_is_no_tile_about_it() -> None:
    with_target, without = (render_html(analysis(target)) for target in (9000.0, None))
    for term in ("Target", "Headroom", "Utilization"):
        assert f"<dt>{term}</dt>" in with_target
        assert f"<dt>{term}</dt>" not in without


def _selectors(style: str) -> Iterator[str]:
    for block in re.findall(r"([^{}]+)\{", style):
        yield from re.findall(r"[.#][a-zA-Z][\w-]*", re.sub(r"@[^{]*", "", block))


def test_the_style_has_no_rule_for_what_no_page_has() -> None:
    pages = [
        render_html(replace(wide(analysis(target)), unaccounted_cpu_us_per_sample=73.0))
        for target in (9000.0, 1.6e6, None)
    ]
    names = {name for page in pages for name in seen(page).names}
    style = pages[0].partition("<style>")[2].partition("</style>")[0]
    others = {".k2", ".k3", ".k4", ".error", ".info"}  # of more CPUs per task, and of other findings
    assert set(_selectors(style)) - names <= others
