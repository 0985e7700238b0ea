"""The training runs of model directories, from `runs.jsonl` and `params.yaml`, and their differences."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cs_toolkit.files import parse_json, read_file

RUNS = "runs.jsonl"
PARAMS = "params.yaml"
MAX_RUNS_BYTES = 64 * 1024 * 1024
MAX_PARAMS_BYTES = 1024 * 1024
# Aliases of YAML can make a small file an enormous value.
_MAX_PARAMS = 1_000
_MAX_DEPTH = 4  # of folders below a given one
_RECORDED = ("batch_size", "precision", "workers", "toolkit_version")


@dataclass(frozen=True)
class TrainingRun:
    """A training run. Values that a record lacks, or has with another type, are None.

    Attributes:
        number: position among the training runs of its directory, from 1.
        status: how it ended.
        started_at_unix_s: its start.
        first_step, last_step: the steps that it trained.
        loss: of the last step.
        samples_per_s: mean rate of the training phase.
        training_s: seconds of the training phase.
        total_s: seconds of the whole run.
        job: id of the job.
        command: its arguments.
        settings: batch size, precision, workers and version.
    """

    number: int
    status: str | None
    started_at_unix_s: float | None
    first_step: float | None
    last_step: float | None
    loss: float | None
    samples_per_s: float | None
    training_s: float | None
    total_s: float | None
    job: str | None
    command: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass
class ModelDir:
    """A directory with training runs.

    Attributes:
        path: as found.
        runs: oldest first.
        params: parameters of the newest run, with dotted names.
        problems: a sentence for each damaged file or line.
    """

    path: Path
    runs: list[TrainingRun] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the value that `csrun runs --json` prints."""
        return {
            "directory": str(self.path),
            "runs": [asdict(run) for run in self.runs],
            "params": self.params,
            "problems": self.problems,
        }


def find_model_dirs(folder: Path) -> Iterator[Path]:
    """Yield a folder and those below it that have a record of runs, in alphabetical order."""
    start = len(folder.parts)
    for path, folders, files in os.walk(folder):
        if RUNS in files:
            yield Path(path)
        deep = len(Path(path).parts) - start >= _MAX_DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith((".", "cs_")))


def read_model_dir(path: Path) -> ModelDir:
    """Read the training runs of a directory; what is damaged becomes a problem."""
    found = ModelDir(path)
    try:
        data = read_file(path / RUNS, MAX_RUNS_BYTES)
    except OSError as error:
        found.problems.append(f"{path / RUNS}: {error.strerror}")
        return found
    found.runs = parse_runs(data, path / RUNS, found.problems)
    if (path / PARAMS).exists():
        found.params = _read_params(path, found.problems)
    return found


def parse_runs(data: bytes, name: Path, problems: list[str]) -> list[TrainingRun]:
    """Return the training runs of a `runs.jsonl`, and append a sentence for each damaged line."""
    runs: list[TrainingRun] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            if line.strip():
                problems.append(f"{name}, line {number}: is no record of a run; left out")
            continue
        if record.get("mode") == "train":
            runs.append(_read_run(len(runs) + 1, record))
    return runs


def parse_params(data: bytes) -> dict[str, Any]:
    """Return the leaves of a `params.yaml` under dotted names.

    Raises:
        ValueError: it has too many.
        RecursionError: it is nested too deep.
        yaml.YAMLError: it is no YAML.
    """
    found: dict[str, Any] = {}
    _flatten("", yaml.safe_load(data), found)
    return found


def _read_run(number: int, record: Mapping[str, Any]) -> TrainingRun:
    measured = record.get("performance")
    seconds = measured.get("total_time") if isinstance(measured, dict) else None
    command = record.get("command")
    return TrainingRun(
        number=number,
        status=_text(record.get("status")),
        started_at_unix_s=_number(record.get("started_at_unix_s")),
        first_step=_number(record.get("first_step")),
        last_step=_number(record.get("last_step")),
        loss=_number(record.get("loss")),
        samples_per_s=_number(record.get("samples_per_sec")),
        training_s=_number(seconds),
        total_s=_number(record.get("total_seconds")),
        job=_text(record.get("job")),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        settings={name: _plain(record[name]) for name in _RECORDED if name in record},
    )


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return hex(value)[:200]  # a decimal form may have too many digits for Python
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)[:200]


def _read_params(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return parse_params(read_file(path / PARAMS, MAX_PARAMS_BYTES))
    except OSError as error:
        problems.append(f"{path / PARAMS}: {error.strerror}")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        problems.append(f"{path / PARAMS}: is no YAML ({first})")
    return {}


def _flatten(name: str, value: Any, found: dict[str, Any]) -> None:
    """Collect the leaves of nested mappings under dotted names."""
    if not isinstance(value, dict):
        if name and len(found) < _MAX_PARAMS:
            found[name] = _plain(value) if not isinstance(value, list) else _list_text(value)
        return
    for key, member in value.items():
        if len(found) >= _MAX_PARAMS:
            raise ValueError(f"more than {_MAX_PARAMS:,} parameters")
        _flatten(f"{name}.{key}" if name else str(key), member, found)


def _list_text(values: Sequence[Any]) -> str:
    shown = ", ".join(str(_plain(one)) if not isinstance(one, dict | list) else "..." for one in values[:20])
    return f"[{shown}{', ...' if len(values) > 20 else ''}]"


def find_differences(dirs: Sequence[ModelDir]) -> list[dict[str, Any]]:
    """Return the settings and parameters that differ: `name`, and `values` of the directories.

    The settings are those of the newest run of a directory.
    """
    columns = [{**(one.runs[-1].settings if one.runs else {}), **one.params} for one in dirs]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [{"name": name, "values": [column.get(name) for column in columns]} for name in names]
    return [row for row in rows if any(repr(value) != repr(row["values"][0]) for value in row["values"])]
