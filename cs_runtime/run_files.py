"""`run_summary.json`, `performance.json` and `runs.jsonl` of a `model_dir`: how its runs went.

The first two are of the newest training; what is compiled, checked or analyzed before there is one has them
too. Of every run `runs.jsonl` keeps a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cs_runtime.errors import ModelDirError
from cs_runtime.files import write_json, write_text
from cs_runtime.options import RunSettings
from cs_runtime.progress import Timeline
from cs_toolkit.step import TensorSpec, device_bytes
from cs_toolkit.version import __version__

if TYPE_CHECKING:
    from cgc.manifest import Estimates
    from cs_toolkit.fabric import Fabric

INPUT_INFO_FILE = "estimate_pipeline_perf_info.yaml"


def performance_json(
    *,
    fabric: Fabric,
    total_samples: int,
    total_time_s: float,
    estimates: Estimates | None,
    compile_time_s: float | None,
    programming_time_s: float | None,
) -> dict[str, Any]:
    """Contents of `performance.json` with the key names of the original.

    `est_samples_per_sec` is the estimate for the wafer, Frequency / delta_t where the layers are a pipeline
    that is there once; with `num_replicas` copies it is that of all of them, delta_t that of one.
    `samples_per_sec` is measured on this system, in `total_time` seconds. `fabric_utilization` is a fraction,
    of `fabric_cores`, which are all cores of the fabric. Values that a mode does not know are null.
    """
    fabric = _used(fabric, estimates)
    return {
        "total_samples": total_samples,
        "total_time": total_time_s,
        "samples_per_sec": total_samples / total_time_s if total_time_s else None,
        "est_samples_per_sec": None if estimates is None else estimates.samples_per_s,
        "delta_t": None if estimates is None else _deltat_cycles(estimates),
        "num_replicas": None if estimates is None else _replicas(estimates),
        "Frequency": fabric.clock_hz,
        "fabric_cores": fabric.processing_elements,
        "fabric_utilization": None if estimates is None else estimates.total_utilization,
        "compile_time": compile_time_s,
        "programming_time": programming_time_s,
    }


def _used(fabric: Fabric, estimates: Estimates | None) -> Fabric:
    """The PEs that the mode of execution has."""
    return fabric if estimates is None else fabric.for_execution(estimates.execution)


def _deltat_cycles(estimates: Estimates) -> int | None:
    """Cycles between two samples, where the mode of execution has such a thing."""
    from cgc.manifest import PipelinedEstimates, StreamedEstimates

    match estimates:
        case PipelinedEstimates():
            return estimates.deltat_cycles
        case StreamedEstimates():
            return None


def _replicas(estimates: Estimates) -> int:
    """Copies of the model on the wafer."""
    from cgc.manifest import PipelinedEstimates

    return estimates.replicas if isinstance(estimates, PipelinedEstimates) else 1


def fabric_json(
    fabric: Fabric, estimates: Estimates | None, system: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Contents of `fabric.json`: the fabric that the program is compiled for, and the system that has it."""
    fabric = _used(fabric, estimates)
    return {
        **fabric.model_dump(mode="json"),
        "processing_elements": fabric.processing_elements,
        "active_pes": None if estimates is None else estimates.active_pes,
        "system": None if system is None else dict(system),
    }


def run_summary(settings: RunSettings, timeline: Timeline, status: str, **details: object) -> dict[str, Any]:
    """Contents of `run_summary.json`: what ran, how it ended, how long each phase took."""
    return {
        "mode": settings.mode,
        "status": status,
        "command": sys.argv,
        "model_dir": str(settings.model_dir),
        "cs_ip": settings.cs_ip,
        "batch_size": settings.batch_size,
        "precision": settings.precision,
        "started_at_unix_s": timeline.started_at,
        "total_seconds": timeline.elapsed_s(),
        "timeline": timeline.to_json(),
        "toolkit_version": __version__,
        **details,
    }


def write_input_info(
    settings: RunSettings,
    inputs: tuple[TensorSpec, ...],
    samples_per_s: float | None,
    artifact: Path | None,
    directory: Path,
) -> None:
    """Writes what an analysis of the input function needs to know, into `directory`.

    `target_samples_per_s` is what the compile report estimates for the wafer; null after validate_only,
    which makes no estimate.
    """
    info = {
        "mode": settings.mode,
        "model_dir": str(settings.model_dir.absolute()),
        "artifact": None if artifact is None else str(artifact.absolute()),
        "batch_size": settings.batch_size,
        "bytes_per_sample": device_bytes(inputs) / settings.batch_size,
        "target_samples_per_s": samples_per_s,
        "inputs": [{"name": i.name, "dtype": i.dtype, "shape": list(i.shape)} for i in inputs],
    }
    write_text(directory / INPUT_INFO_FILE, yaml.safe_dump(info, sort_keys=False))


_DROPPED = object()


def plain(value: Any) -> Any:
    """The part of a value that JSON can hold: what cannot is left out of mappings and sequences.

    NumPy numbers become Python's, tuples lists, paths text.
    """
    kept = _plain(value)
    return None if kept is _DROPPED else kept


def text_of(params: Mapping[str, Any]) -> str:
    """Parameters as YAML."""
    return yaml.safe_dump(plain(params), sort_keys=False)


def write_params(model_dir: Path, params: Mapping[str, Any]) -> None:
    """Writes `params.yaml`, replacing it in one step.

    Raises:
        ModelDirError: the directory is not writable or full.
    """
    write_text(model_dir / "params.yaml", text_of(params))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # np.float64 is a float that YAML does not know
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, Mapping):
        members = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in members.items() if item is not _DROPPED}
    if isinstance(value, (list, tuple)):
        return [item for item in map(_plain, value) if item is not _DROPPED]
    # NumPy scalars and arrays; an array of a few numbers is a parameter too.
    to_list = getattr(value, "tolist", None)
    return _plain(to_list()) if callable(to_list) and type(value).__module__ == "numpy" else _DROPPED


RUN_SUMMARY = "run_summary.json"
PERFORMANCE = "performance.json"
RUNS = "runs.jsonl"


def write_run_files(
    model_dir: Path, summary: Mapping[str, Any], performance: Mapping[str, Any] | None = None
) -> None:
    """Writes how a run went, beside what the runs before it have left.

    Args:
        model_dir: of the run.
        summary: see `cs_runtime.run_files.run_summary`.
        performance: see `cs_runtime.run_files.performance_json`; None: the run has none.

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
