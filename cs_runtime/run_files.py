"""`run_summary.json`, `performance.json` and `runs.jsonl` of a `model_dir`: how its runs went.

The first two are of the newest training; what is compiled, checked or analyzed before there is one has them
too. Of every run `runs.jsonl` keeps a line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cs_runtime.errors import ModelDirError
from cs_runtime.files import write_json

RUN_SUMMARY = "run_summary.json"
PERFORMANCE = "performance.json"
RUNS = "runs.jsonl"


def write_run_files(
    model_dir: Path, summary: Mapping[str, Any], performance: Mapping[str, Any] | None = None
) -> None:
    """Writes how a run went, beside what the runs before it have left.

    Args:
        model_dir: of the run.
        summary: see `cs_runtime.summaries.run_summary`.
        performance: see `cs_runtime.summaries.performance_json`; None: the run has none.

    Raises:
        ModelDirError: the directory is not writable or full.
    """
    _append(model_dir / RUNS, {**summary, "performance": performance})
    idle = performance is not None and not performance["total_samples"]
    if performance is not None and not (idle and _trained_samples(model_dir / PERFORMANCE)):
        write_json(model_dir / PERFORMANCE, performance)
    if not ((summary["mode"] != "train" or idle) and _mode(model_dir / RUN_SUMMARY) == "train"):
        write_json(model_dir / RUN_SUMMARY, summary)


def _append(path: Path, data: Mapping[str, Any]) -> None:
    line = json.dumps(data, sort_keys=True, default=str) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise ModelDirError(path.parent, error) from error


def _trained_samples(path: Path) -> int:
    found = _read(path).get("total_samples")
    return found if isinstance(found, int) else 0


def _mode(path: Path) -> Any:
    return _read(path).get("mode")


def _read(path: Path) -> Mapping[str, Any]:
    """What a file holds; nothing where it is not there or damaged."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}
