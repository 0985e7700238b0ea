"""The compile section of a report, its sums by family, and its reproducible part."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.driver import CompileResult, compile_step
from cgc.execution.compilation import CompileOptions
from cgc.manifest import Provenance
from cgc.report import CompileReport, build_json, render_html, render_text
from cgc.report.families import sum_families
from cs_toolkit.fabric import load_fabric
from cs_toolkit.step import ExecutionChoice

STEP = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"
MADE = (
    Provenance(
        "model_fn in model.py", "run.py", "python run.py -o <x>", "2026-03-01 12:30:00 +0100", {"jax": "1"}
    ),
    Provenance("other", "other.py", "python other.py", "2026-03-02 12:30:00 +0100", {"jax": "1"}),
)


def compiled(folder: Path, made: Provenance | None, execution: ExecutionChoice) -> CompileResult:
    module = parse_module(STEP.read_text(), str(STEP))
    options = CompileOptions(execution=execution, precision="mixed_float16")
    return compile_step(module, folder, options, load_fabric("cs2"), made=made)


@pytest.mark.parametrize("execution", ["pipelined", "weight_streaming"])
def test_only_the_report_describes_and_depends_on_the_compiled_program(
    execution: ExecutionChoice, tmp_path: Path
) -> None:
    first, second = (compiled(tmp_path / str(i), made, execution) for i, made in enumerate(MADE))
    text, page = first.report_text, first.artifact.read("compile_report.html").decode()
    for what in ("mixed_float16", *(text for _, text in MADE[0].lines())):
        assert what in text
        assert escape(what) in page
    assert "256 samples a step" in text
    assert "cs2, 7" in text
    assert json.loads(first.artifact.read("provenance.json"))["model"] == "model_fn in model.py"

    assert first.artifact.key == second.artifact.key
    files = first.artifact.manifest.files
    changed = {name for name, entry in files.items() if entry != second.artifact.manifest.files[name]}
    assert changed == {"compile_report.txt", "compile_report.html", "provenance.json"}

    again = compiled(tmp_path / "0", MADE[1], execution)
    assert again.reused
    assert "python run.py" in again.report_text


def test_families_are_sums_of_their_kernels(tmp_path: Path) -> None:
    report = compiled(tmp_path, None, "pipelined").report
    assert isinstance(report, CompileReport)
    sums = {one.family: one for one in sum_families(report.pipelined.kernels)}
    assert {name: one.kernels for name, one in sums.items()} == Counter(
        row.kernel.family for row in report.pipelined.kernels
    )
    products = [row.figures for row in report.pipelined.kernels if row.kernel.family == "fully_connected"]
    one = sums["fully_connected"]
    assert one.active_pes == sum(figures.active_pes for figures in products)
    assert one.samples_per_s == min(figures.samples_per_s for figures in products)
    busy = sum(f.active_pes * f.compute_utilization_percent for f in products)
    assert one.compute_utilization_percent == pytest.approx(busy / one.active_pes)
    assert sum(one.active_pes for one in sums.values()) == report.pipelined.performance.overall.active_pes
    assert [entry["family"] for entry in build_json(report)["families"]] == list(sums)
    table = render_text(report).split("| Family ")[1].split("\n\n")[0]
    assert f"| fully_connected |       3 | {one.active_pes} " in table
    assert "fully connected" in render_html(report).split("By family")[1].split("</table>")[0]
