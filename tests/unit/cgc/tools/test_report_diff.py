"""`cgc-report diff`: two reports side by side."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cgc.cirh.text import parse_module
from cgc.driver import compile_step
from cgc.execution.compilation import CompileOptions
from cgc.manifest import Provenance
from cgc.tools.report import main
from cs_toolkit.fabric import load_fabric

STEP = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with an artifact each, by name."""
    folder = tmp_path_factory.mktemp("reports")
    kinds: dict[str, dict[str, Any]] = {
        "wide": {},
        "half": {"precision": "mixed_float16"},
        "streamed": {"execution": "weight_streaming"},
        "streamed_half": {"execution": "weight_streaming", "precision": "mixed_float16"},
    }
    for name, options in kinds.items():
        module = parse_module(STEP.read_text(), str(STEP))
        made = Provenance(command=f"python run.py -o {name}", program="run.py")
        compile_step(module, folder / name, CompileOptions(**options), load_fabric("cs2"), made=made)
    return {name: folder / name for name in kinds}


def diff(*arguments: object) -> str:
    done = CliRunner().invoke(main, ["diff", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_it_reports_the_changes(folders: dict[str, Path]) -> None:
    text = diff(folders["wide"], folders["half"])
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    assert ["precision", "float32", "mixed_float16"] in rows
    assert ["command", "python run.py -o wide", "python run.py -o half"] in rows
    assert "The same: program run.py, execution pipelined, batch 256, fabric cs2" in text
    found = json.loads(diff("--json", folders["wide"], folders["half"]))
    reports = [json.loads(Path(path).read_text()) for path in found["reports"]]
    rate = next(row for row in found["overall"] if row["what"] == "Samples/s")
    assert (rate["a"], rate["b"]) == tuple(report["overall"]["samples_per_s"] for report in reports)
    assert rate["percent"] == pytest.approx(100 * (rate["b"] / rate["a"] - 1))
    kernels = [{kernel["name"]: kernel for kernel in report["kernels"]} for report in reports]
    for row in found["parts"]:
        for side, value in enumerate((row["a"], row["b"])):
            kernel = kernels[side].get(row["name"])
            assert value == (kernel and kernel["deltat_cycles"])
            assert row["pes"][side] == (kernel and kernel["active_pes"])
    only_half = set(kernels[1]) - set(kernels[0])
    assert {row[0] for row in rows if "new" in row} == only_half


def test_a_report_is_the_same_as_itself(folders: dict[str, Path]) -> None:
    [artifact] = folders["wide"].glob("cs_*")
    text = diff(artifact, artifact / "compile_report.json")
    assert "All 7 kernels are the same." in text
    assert "%" not in text.replace("utilization, %", "")


def test_layers_are_compared_where_weights_stream(folders: dict[str, Path]) -> None:
    found = json.loads(diff("--json", folders["streamed"], folders["streamed_half"]))
    assert found["unit"] == "ms"
    report = json.loads(Path(found["reports"][0]).read_text())
    assert {row["name"] for row in found["parts"]} == {layer["name"] for layer in report["layers"]}
    mixed = diff(folders["wide"], folders["streamed"])
    assert "no parts to compare" in mixed
    assert "execution" in mixed


def test_a_folder_without_a_report_and_other_files_are_named(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "other.json").write_text("[1]")
    for given, message in (
        (tmp_path, "there is no compile report in"),
        (tmp_path / "other.json", "is no compile report"),
    ):
        done = CliRunner().invoke(main, ["diff", str(folders["wide"]), str(given)])
        assert done.exit_code == 1
        assert message in done.output
    assert CliRunner().invoke(main, ["diff", "one"]).exit_code == 2


def test_the_module_can_be_run(folders: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "cgc.tools.report", "diff", str(folders["wide"]), str(folders["half"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == diff(folders["wide"], folders["half"])


@pytest.mark.parametrize(
    ("key", "value"), [("kernels", None), ("kernels", [{}]), ("batch_size", 10**400), ("families", [[]])]
)
@pytest.mark.parametrize("command", ["diff", "trace"])
def test_a_damaged_report(
    folders: dict[str, Path], tmp_path: Path, command: str, key: str, value: object
) -> None:
    (path,) = folders["wide"].glob("cs_*/compile_report.json")
    damaged = tmp_path / "compile_report.json"
    damaged.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    arguments = [damaged, damaged] if command == "diff" else [damaged, "-o", tmp_path / "trace.json"]
    done = CliRunner().invoke(main, [command, *map(str, arguments)])
    assert done.exit_code in (0, 1), done.output  # each command reads some of the values only
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.exit_code == 0 or "compile the program again" in done.output


def test_names_in_reports_do_not_control_a_terminal(folders: dict[str, Path], tmp_path: Path) -> None:
    (path,) = folders["wide"].glob("cs_*/compile_report.json")
    report = json.loads(path.read_text())
    report["kernels"][0]["name"] = "evil\x1b]2;title\x07"
    (tmp_path / "compile_report.json").write_text(json.dumps(report))
    done = CliRunner().invoke(main, ["diff", str(path), str(tmp_path)], color=True)
    assert "evil\\x1b]2;title\\x07" in done.output
    assert "\x1b" not in done.output


def test_the_page_shows_both_floorplans_at_one_scale(folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "diff.html"
    text = diff(folders["wide"], folders["half"], f"--html={file}")
    assert text == diff(folders["wide"], folders["half"]), "the text is printed as well"
    html = file.read_text(encoding="utf-8")
    assert "default-src 'none'; style-src" in html
    assert "<script" not in html
    assert html.count('<svg role="img"') == 2
    assert len(set(re.findall(r'viewBox="([^"]+)"', html))) == 1
    found = json.loads(diff("--json", folders["wide"], folders["half"]))
    rate = next(row for row in found["overall"] if row["what"] == "Samples/s")
    assert f'<td data-label="B / A">{rate["b"] / rate["a"]:.3g}</td>' in html
    changed = [row["name"] for row in found["parts"] if row["a"] != row["b"]]
    shown = [
        re.sub("<wbr>", "", name) for name in re.findall(r'<th scope="row">([^<]*(?:<wbr>[^<]*)*)</th>', html)
    ]
    assert [name for name in shown if name in changed] == changed, "by effect"
    assert '<th scope="row">precision</th><td data-label="A">float32</td>' in html


@pytest.mark.parametrize("pair", [("streamed", "streamed_half"), ("wide", "streamed")])
def test_the_page_without_floorplans_says_so(
    pair: tuple[str, str], folders: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "diff.html"
    diff(*(folders[name] for name in pair), f"--html={file}")
    html = file.read_text(encoding="utf-8")
    assert "<svg" not in html
    assert "each layer has a floorplan" in html


def test_hostile_names_stay_text_in_the_page(folders: dict[str, Path], tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x>\ud800"
    [found] = folders["wide"].glob("cs_*/compile_report.json")
    report = json.loads(found.read_text())
    report["fabric"] = report["kernels"][0]["name"] = report["bottleneck"]["kernel"] = hostile
    other = tmp_path / "compile_report.json"
    other.write_text(json.dumps(report))
    diff(found, other, f"--html={tmp_path / 'diff.html'}")
    html = (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert "<img" not in html
    assert "<script" not in html


def test_a_page_that_cannot_be_written_is_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    arguments = ["diff", str(folders["wide"]), str(folders["half"]), f"--html={tmp_path / 'no' / 'x.html'}"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "name another file with --html" in done.output
