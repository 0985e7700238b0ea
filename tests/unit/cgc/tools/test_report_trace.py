"""`cgc-report trace`: the predicted pipeline of a report, valid for Perfetto, with the report's figures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cgc.cirh.text import parse_module
from cgc.driver import compile_step
from cgc.execution.compilation import CompileOptions
from cgc.tools.report import main
from cs_toolkit.fabric import load_fabric
from tests.traces import find_problems

STEP = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


def compile_to(folder: Path, execution: str) -> Path:
    options = CompileOptions(execution=execution)
    compile_step(parse_module(STEP.read_text(), str(STEP)), folder, options, load_fabric("cs2"))
    return folder


@pytest.fixture(scope="module")
def pipelined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_to(tmp_path_factory.mktemp("pipelined"), "pipelined")


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_to(tmp_path_factory.mktemp("streamed"), "weight_streaming")


def report_of(artifact: Path) -> dict[str, Any]:
    (path,) = artifact.glob("cs_*/compile_report.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def trace(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["trace", *map(str, arguments), "-o", "-"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    assert find_problems(found) == []
    return found


def test_each_kernel_works_on_each_sample_one_interval_later(pipelined: Path) -> None:
    report = report_of(pipelined)
    found = trace(pipelined, "--samples=5")
    tracks = [event for event in found["traceEvents"] if event["name"] == "thread_name"]
    assert [track["args"]["name"].split(" (")[0] for track in tracks] == [
        kernel["name"] for kernel in report["kernels"]
    ]
    interval_us = 1e6 * report["bottleneck"]["deltat_cycles"] / report["clock_hz"]
    for track, kernel in zip(tracks, report["kernels"], strict=True):
        slices = [
            event for event in found["traceEvents"] if event["ph"] == "X" and event["tid"] == track["tid"]
        ]
        assert len(slices) == 5
        for before, after in pairwise(slices):
            assert after["ts"] - before["ts"] == pytest.approx(interval_us, abs=0.0011)
        assert slices[0]["ts"] == pytest.approx(1e6 * kernel["start_cycles"] / report["clock_hz"], abs=0.001)
        # The kernel that bounds the speed has no gap.
        if kernel["name"] == report["bottleneck"]["kernel"]:
            assert slices[0]["dur"] == pytest.approx(interval_us, abs=0.002)


def test_kernels_start_after_the_first_row_of_their_inputs(pipelined: Path) -> None:
    report = report_of(pipelined)
    starts = {kernel["name"]: kernel["start_cycles"] for kernel in report["kernels"]}
    cycles = {kernel["name"]: kernel["deltat_cycles"] for kernel in report["kernels"]}
    # A sample of FC-MNIST is one row.
    assert starts["fc1"] == 0
    assert starts["dropout1"] == cycles["fc1"]
    assert starts["fc2"] == starts["dropout1"] + cycles["dropout1"]


def test_the_layers_of_a_streamed_step_take_its_time(streamed: Path) -> None:
    report = report_of(streamed)
    slices = [event for event in trace(streamed)["traceEvents"] if event["ph"] == "X"]
    by_name = {event["name"]: event for event in slices}
    assert {layer["name"] for layer in report["layers"]} <= set(by_name)
    expected = sum(
        layer[part] for layer in report["layers"] for part in ("exposed_transfer_s", "latency_s", "compute_s")
    )
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(1e6 * expected, abs=0.01)


def test_a_report_of_an_older_version_is_an_error(pipelined: Path, streamed: Path, tmp_path: Path) -> None:
    for artifact, parts, missing in (
        (pipelined, "kernels", "start_cycles"),
        (streamed, "layers", "latency_s"),
    ):
        report = report_of(artifact)
        for part in report[parts]:
            del part[missing]
        (tmp_path / "compile_report.json").write_text(json.dumps(report))
        done = CliRunner().invoke(main, ["trace", str(tmp_path), "-o", "-"])
        assert done.exit_code == 1
        assert f"no '{missing}': an older version of the toolkit wrote it" in done.output


def test_the_trace_is_written_to_a_file(pipelined: Path, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    done = CliRunner().invoke(main, ["trace", str(pipelined), "-o", str(file)])
    assert done.exit_code == 0
    assert find_problems(json.loads(file.read_text())) == []
    done = CliRunner().invoke(main, ["trace", str(pipelined), "-o", str(tmp_path / "none" / "a.json")])
    assert done.exit_code == 1
    assert "name another file with -o" in done.output


def test_the_page_of_a_pipelined_step_draws_the_first_samples(pipelined: Path, streamed: Path) -> None:
    def page(artifact: Path) -> str:
        (file,) = artifact.glob("cs_*/compile_report.html")
        return file.read_text()

    assert page(pipelined).count('class="sample u') == 8
    assert "every kernel is a row in data-flow order" in page(pipelined)
    assert 'class="sample' not in page(streamed)
