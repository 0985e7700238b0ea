from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cs_runtime.run_files import to_plain_data, write_params, write_run_files


def wrote(model_dir: Path, mode: str, samples: int, status: str = "completed") -> tuple[Any, Any]:
    """Writes the files of a run; (mode in run_summary.json, samples in performance.json) afterwards."""
    write_run_files(model_dir, {"mode": mode, "status": status}, {"total_samples": samples})
    summary = json.loads((model_dir / "run_summary.json").read_text())
    performance = json.loads((model_dir / "performance.json").read_text())
    return summary["mode"], performance["total_samples"]


def test_a_training_outlives_what_looks_at_the_program_later(tmp_path: Path) -> None:
    assert wrote(tmp_path, "validate_only", 0) == ("validate_only", 0)
    assert wrote(tmp_path, "compile_only", 0) == ("compile_only", 0)
    assert wrote(tmp_path, "train", 6400) == ("train", 6400)
    for mode in ("compile_only", "validate_only", "eval"):
        assert wrote(tmp_path, mode, 0) == ("train", 6400)
    assert wrote(tmp_path, "train", 100) == ("train", 100)
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [run["mode"] for run in runs] == [
        "validate_only", "compile_only", "train", "compile_only", "validate_only", "eval", "train",
    ]  # fmt: skip
    assert [run["performance"]["total_samples"] for run in runs] == [0, 0, 6400, 0, 0, 0, 100]


def test_a_training_run_without_a_step_keeps_the_previous_one(tmp_path: Path) -> None:
    wrote(tmp_path, "train", 6400)
    assert wrote(tmp_path, "train", 0, "nothing") == ("train", 6400)
    assert json.loads((tmp_path / "run_summary.json").read_text())["status"] == "completed"


def test_files_that_a_script_has_moved_away_are_written_again(tmp_path: Path) -> None:
    wrote(tmp_path, "train", 6400)
    for name in ("run_summary.json", "performance.json"):
        (tmp_path / name).unlink()
    assert wrote(tmp_path, "compile_only", 0) == ("compile_only", 0)


def test_a_failed_training_reports_its_failure_and_keeps_the_rates_before(tmp_path: Path) -> None:
    wrote(tmp_path, "train", 6400)
    write_run_files(tmp_path, {"mode": "train", "status": "failed"})
    assert json.loads((tmp_path / "run_summary.json").read_text())["status"] == "failed"
    assert json.loads((tmp_path / "performance.json").read_text())["total_samples"] == 6400


def test_params_keep_values_that_json_can_hold(tmp_path: Path) -> None:
    params: dict[str, Any] = {
        "rate": np.float32(0.5),
        "sizes": (np.int64(3), 4),
        "nested": {"function": print, "path": Path("a/b"), "on": True, "none": None},
    }
    expected = {
        "rate": 0.5,
        "sizes": [3, 4],
        "nested": {"path": "a/b", "on": True, "none": None},
    }
    assert to_plain_data(params) == expected
    write_params(tmp_path / "new", params)
    assert yaml.safe_load((tmp_path / "new" / "params.yaml").read_text()) == expected
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["params.yaml"]
