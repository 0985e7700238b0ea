"""Texts of an analysis on a terminal, and the Input Function Report of a log, letter by letter.

`UPDATE_GOLDEN=1 pytest tests/golden/input_analyzer` writes the files again; look at the difference.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from input_analyzer.analysis import (
    Analysis,
    Bottleneck,
    Component,
    ContentionModel,
    Layout,
    Measurement,
    Node,
    Prediction,
    Recommendation,
    Subject,
    Target,
)
from input_analyzer.report.text import print_report
from input_rules.findings import Finding, Gain, report_lines
from input_rules.throughput import StageCost

HERE = Path(__file__).parent

FINDINGS = (
    Finding(
        "shard-missing", "error", "TFRecordDataset", "data.py:12", "both workers read the same records",
        "shard(num_workers, worker_index) right behind the source", Gain("not-speed", "each record once"),
    ),
    Finding(
        "parallel-calls-missing", "warning", "map", "data.py:13", "its calls run one after the other",
        "map(..., num_parallel_calls=CS_AUTOTUNE)",
        Gain("measured", "1.82 times the rate with 2 CPUs (1.70 to 1.95)", 1.82, 1.7, 1.95, 2),
    ),
    Finding(
        "cache-would-fit", "info", "map", "data.py:13", "an epoch takes about 1.2 GiB here",
        "cache() behind this map()", Gain("expected", "about 3 times the rate from the second epoch on", 3.0),
    ),
)  # fmt: skip
ANALYSIS = Analysis(
    subject=Subject(
        ("python", "run.py", "--mode=train"), "train_input_fn", "data.py:10", "tensorflow", 256,
        (Component("features/image", "float32", (256, 784)), Component("labels", "int32", (256,))), 5000,
    ),
    node=Node("node1", 4, 16 << 30),
    available_nodes=2,
    stages=(
        StageCost("TFRecordDataset", "TFRecordDataset", 0, 12.0, 3.0, 9.0, False, "data.py:12"),
        StageCost("map", "map", 1, 220.0, 215.0, 5.0, False, "data.py:13"),
        StageCost("cache", "cache", 2, 900.0, 900.0, 0.0, True, "data.py:14"),
        StageCost("batch", "batch", 3, 7.0, 7.0, 0.0, False, "data.py:16"),
        StageCost("prefetch", "prefetch", 4, source="data.py:16"),
    ),
    bottleneck=Bottleneck("map", "map", "220 us of computing per sample, 92 % of the time of all stages"),
    findings=FINDINGS,
    measurements=(
        Measurement(
            1, 1, 3125.0, 2969.0, 3281.0, batches=40, first_epoch_samples_per_s=1200.0,
            cpu_us_per_sample=312.0, bytes_per_sample=3140.0, memory_per_task_bytes=700 << 20,
        ),
        Measurement(
            2, 1, 6068.0, 5100.0, 7036.0, settled=False, batches=8,
            cpu_us_per_sample=312.0, bytes_per_sample=3140.0, memory_per_task_bytes=700 << 20,
        ),
    ),
    model=ContentionModel("rate = n / t", 0.031, {1: ((1, 3125.0), (2, 6068.0))}),
    predictions=(
        Prediction(Layout(1, 2, 1), 3125.0),
        Prediction(Layout(1, 4, 1), 8844.0),
        Prediction(Layout(2, 3, 1), 14912.0),
    ),
    recommendation=Recommendation(Layout(2, 3, 1), 14912.0, 0.657, 1.0, 14000.0, 15800.0),
    target=Target(9000.0, "estimated for the wafer in model_dir/cs_1/compile_report.json"),
    input_bound=False,
    combination=("parallel-calls-missing", "prefetch-missing"),
    gain_together=Gain("measured", "2.50 times the rate with 2 CPUs (2.30 to 2.70)", 2.5, 2.3, 2.7, 2),
    notes=("One node was measured; what several share is not in the predictions.",),
    elapsed_s=42.0,
    unaccounted_cpu_us_per_sample=73.0,
)  # fmt: skip


def assert_golden(name: str, text: str) -> None:
    path = HERE / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def on_terminal(analysis: Analysis, width: int) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as captured:
        print_report(analysis, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def test_an_input_that_is_fast_enough() -> None:
    assert_golden("fast_enough.txt", on_terminal(ANALYSIS, 120))


def test_an_input_that_is_too_slow_on_a_narrow_terminal() -> None:
    slow = replace(
        ANALYSIS,
        recommendation=Recommendation(Layout(2, 3, 1), 14912.0, -0.8136, 0.1864, 14000.0, 15800.0),
        target=Target(80_000.0, "given with --target-samples-per-s"),
        input_bound=True,
    )
    assert_golden("input_bound.txt", on_terminal(slow, 80))


def test_an_input_of_which_little_is_known() -> None:
    bare = replace(
        ANALYSIS,
        stages=(),
        bottleneck=None,
        findings=(),
        combination=(),
        gain_together=None,
        recommendation=Recommendation(Layout(2, 3, 1), 14912.0, None, None),
        target=None,
        input_bound=None,
        unaccounted_cpu_us_per_sample=None,
    )
    assert_golden("little_known.txt", on_terminal(bare, 120))


def test_the_report_in_a_log() -> None:
    told = report_lines(FINDINGS, ["python", "run.py", "--mode=train"], ["It was not looked at one thing."])
    nothing = report_lines(())
    text = "".join(f"{logging.getLevelName(level)} {line}\n" for level, line in (*told, *nothing))
    assert_golden("input_function_report.txt", text)
