"""`csrun runs`: training runs of directories as text, JSON and a page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from csrun.commands.runs import runs
from csrun.errors import CsrunError

HOSTILE = "<script>alert(1)</script>\"'><img src=x>\x1b[31m\ud800"


def record(loss: object = 1.5, first: int = 0, last: int = 10, **more: object) -> dict[str, object]:
    return {
        "mode": "train",
        "status": "completed",
        "started_at_unix_s": 1_796_054_067.4,
        "first_step": first,
        "last_step": last,
        "loss": loss,
        "samples_per_sec": 640.25,
        "total_seconds": 9.5,
        "batch_size": 32,
        "precision": "float32",
        "performance": {"total_time": 0.5},
        "command": ["run.py"],
        **more,
    }


def write(folder: Path, *records: object, params: str = "") -> Path:
    folder.mkdir(parents=True)
    lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
    (folder / "runs.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "params.yaml").write_text(params)
    return folder


def call(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    """Call the command, and return what it writes to stdout and stderr."""
    result = CliRunner().invoke(runs, [str(one) for one in arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return capfd.readouterr()


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    first = write(
        tmp_path / "a",
        record(8.0),
        {"mode": "compile"},
        record(0.25, 10, 20),
        params="optimizer: {lr: 0.1, name: sgd}\n",
    )
    return first, write(
        tmp_path / "b", record(4.0, batch_size=64), params="optimizer: {lr: 0.2, name: sgd}\n"
    )


def test_runs_of_two_directories_are_compared(
    two: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    text, errors = call(capfd, *two)
    assert errors == ""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert f"A {two[0]}: 2 training runs" in lines
    assert "1 2026-11-30 15:54 0 to 10 8 640.2 0.5 s completed" in lines
    assert "2 2026-11-30 15:54 10 to 20 0.25 640.2 0.5 s completed" in lines
    assert {"batch_size 32 64", "optimizer.lr 0.1 0.2"} <= set(lines)
    assert "optimizer.name" not in text, "it is the same"


def test_json_has_the_unrounded_values(two: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    found: Any = json.loads(call(capfd, "--json", two[0].parent)[0])
    assert [one["directory"] for one in found["directories"]] == list(map(str, two))
    assert [run["loss"] for run in found["directories"][0]["runs"]] == [8.0, 0.25]
    assert found["directories"][0]["runs"][0]["samples_per_s"] == 640.25
    assert {"name": "optimizer.lr", "values": [0.1, 0.2]} in found["differences"]


def test_the_page_has_a_curve_for_each_directory(
    two: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call(capfd, *two, f"--html={tmp_path / 'runs.html'}")
    html = (tmp_path / "runs.html").read_text()
    curves = re.findall(r'<polyline points="([^"]+)"', html)
    assert [len(curve.split()) for curve in curves] == [2, 1]
    heights = [float(point.split(",")[1]) for point in curves[0].split()]
    assert heights[0] < heights[1], "a smaller loss is lower"
    assert "logarithmic" in html, "8 is 32 times 0.25"
    assert "default-src 'none'" in html
    assert not re.search(r"https?:|url\(", html)


def test_damaged_records_are_named_and_the_rest_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    foreign = {"mode": "train", "loss": "low", "last_step": 10**400, "command": 7, "performance": []}
    write(
        tmp_path / "a",
        record(),
        '{"mode": "train", "lo',
        "[1]",
        foreign,
        "[" * 100_000,
        record(float("nan")),
        params="a: [",
    )
    write(tmp_path / "b", "\x00\xff")
    os.mkfifo(tmp_path / "fifo")
    text, errors = call(capfd, tmp_path, tmp_path / "missing", f"--html={tmp_path / 'runs.html'}")
    assert "a: 3 training runs" in text
    for number in (2, 3, 5):
        assert f"runs.jsonl, line {number}: is no record of a run" in errors
    assert "params.yaml: is no YAML" in errors
    assert "there is no runs.jsonl in" in errors
    assert "missing or below it" in errors
    assert "line 5" in (tmp_path / "runs.html").read_text()


def test_parameters_that_are_enormous_are_a_problem(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    levels = ["l0: &l0 {a: 1, b: 2}"]
    levels += [f"l{n}: &l{n} {{{', '.join(f'k{k}: *l{n - 1}' for k in range(9))}}}" for n in range(1, 12)]
    write(tmp_path / "a", record(), params="\n".join(levels))
    write(tmp_path / "b", record(), params=f"big: 0x{'f' * 20_000}\nnot_finite: .inf\n")
    text, errors = call(capfd, tmp_path)
    assert "more than 1,000 parameters" in errors
    assert "0xffff" in text
    json.loads(call(capfd, "--json", tmp_path)[0], parse_constant=pytest.fail)


def test_hostile_texts_are_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = record(status=HOSTILE, precision=HOSTILE, command=[HOSTILE])
    write(tmp_path / "a\x1b[31m<img>", bad)
    write(tmp_path / "b", record())
    text, _ = call(capfd, tmp_path, f"--html={tmp_path / 'runs.html'}")
    assert "\x1b" not in text
    html = (tmp_path / "runs.html").read_text()
    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_no_run_at_all_is_one_message(tmp_path: Path) -> None:
    result = CliRunner().invoke(runs, [str(tmp_path)], standalone_mode=False)
    assert isinstance(result.exception, CsrunError)
    assert "expected a model_dir" in str(result.exception)
