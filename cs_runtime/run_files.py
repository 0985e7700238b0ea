"""Files of a run in `model_dir`: `run_summary.json`, `performance.json`, `runs.jsonl` and `params.yaml`.

The first two describe the newest training run, or the newest compile or validation while there is no training
run. `runs.jsonl` gets one line per run.
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
from cs_toolkit import __version__
from cs_toolkit.files import read_json
from cs_toolkit.step import TensorSpec, device_bytes

if TYPE_CHECKING:
    from cgc.manifest import Estimates
    from cs_toolkit.fabric import Fabric

RUN_SUMMARY = "run_summary.json"
PERFORMANCE = "performance.json"
RUNS = "runs.jsonl"
INPUT_INFO_FILE = "estimate_pipeline_perf_info.yaml"


def write_run_files(
    model_dir: Path, summary: Mapping[str, Any], performance: Mapping[str, Any] | None = None
) -> None:
    """Write the files that describe a run, and append it to `runs.jsonl`.

    Args:
        model_dir: Directory of the run.
        summary: Contents of `run_summary.json` (`run_summary`).
        performance: Contents of `performance.json` (`performance_json`); None if the run has none.

    Raises:
        ModelDirError: The directory is not writable or full.
    """
    line = json.dumps({**summary, "performance": performance}, sort_keys=True, default=str) + "\n"
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        with (model_dir / RUNS).open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise ModelDirError(model_dir, error) from error
    # A compile or validation does not replace the files of a training run.
    idle = performance is not None and not performance["total_samples"]
    if performance is not None and not (idle and _read(model_dir / PERFORMANCE).get("total_samples")):
        write_json(model_dir / PERFORMANCE, performance)
    if not ((summary["mode"] != "train" or idle) and _read(model_dir / RUN_SUMMARY).get("mode") == "train"):
        write_json(model_dir / RUN_SUMMARY, summary)


def _read(path: Path) -> Mapping[str, Any]:
    """Return the contents of a JSON file; empty if it is missing or corrupt."""
    try:
        found: Any = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def performance_json(
    *,
    fabric: Fabric,
    total_samples: int,
    total_time_s: float,
    estimates: Estimates | None,
    compile_time_s: float | None,
    programming_time_s: float | None,
    order_digest: str | None = None,
    order_digest_from: int = 0,
) -> dict[str, Any]:
    """Return the contents of `performance.json`, with the key names of the original.

    `est_samples_per_sec` is the estimate for the wafer; for a pipeline it is num_replicas * Frequency /
    delta_t. `samples_per_sec` is measured on this system over `total_time` seconds. `fabric_utilization` is
    the fraction of `fabric_cores` in use. `order_digest` is equal for two training runs that have used the
    same batches in the same order since step `order_digest_from`, in any number of runs. Values that do not
    apply to the execution mode are null.
    """
    from cgc.manifest import PipelinedEstimates

    fabric = _usable_fabric(fabric, estimates)
    pipeline = estimates if isinstance(estimates, PipelinedEstimates) else None
    # Other execution modes have one copy of the model on the wafer, and no time between two samples.
    replicas = 1 if pipeline is None else pipeline.replicas
    return {
        "total_samples": total_samples,
        "total_time": total_time_s,
        "samples_per_sec": total_samples / total_time_s if total_time_s else None,
        "est_samples_per_sec": None if estimates is None else estimates.samples_per_s,
        "delta_t": None if pipeline is None else pipeline.deltat_cycles,
        "num_replicas": None if estimates is None else replicas,
        "Frequency": fabric.clock_hz,
        "fabric_cores": fabric.processing_elements,
        "fabric_utilization": None if estimates is None else estimates.total_utilization,
        "compile_time": compile_time_s,
        "programming_time": programming_time_s,
        "order_digest": order_digest,
        "order_digest_from": None if order_digest is None else order_digest_from,
        "toolkit_version": __version__,
    }


def _usable_fabric(fabric: Fabric, estimates: Estimates | None) -> Fabric:
    """Return the part of the fabric that the execution mode can use."""
    return fabric if estimates is None else fabric.for_execution(estimates.execution)


def fabric_json(
    fabric: Fabric, estimates: Estimates | None, system: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the contents of `fabric.json`: the fabric that the program is compiled for, and its system."""
    fabric = _usable_fabric(fabric, estimates)
    return {
        **fabric.model_dump(mode="json"),
        "processing_elements": fabric.processing_elements,
        "active_pes": None if estimates is None else estimates.active_pes,
        "system": None if system is None else dict(system),
        "toolkit_version": __version__,
    }


def run_summary(settings: RunSettings, timeline: Timeline, status: str, **details: object) -> dict[str, Any]:
    """Return the contents of `run_summary.json`: command, status, and time of each phase."""
    return {
        "mode": settings.mode,
        "status": status,
        "command": sys.argv,
        "model_dir": str(settings.model_dir),
        "cs_ip": settings.cs_ip,
        "batch_size": settings.batch_size,
        "precision": settings.options.precision,
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
    """Write the facts that an analysis of the input function needs to `directory`.

    `target_samples_per_s` is the compile report's estimate for the wafer; null after validate_only, which
    makes no estimate.
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


_OMITTED = object()


def to_plain_data(value: Any) -> Any:
    """Return the part of a value that JSON can represent.

    NumPy numbers become Python numbers, tuples become lists, paths become strings. What JSON cannot
    represent is omitted from mappings and sequences.
    """
    found = _convert(value)
    return None if found is _OMITTED else found


def write_params(model_dir: Path, params: Mapping[str, Any]) -> None:
    """Write `params.yaml` atomically.

    Raises:
        ModelDirError: The directory is not writable or full.
    """
    write_text(model_dir / "params.yaml", params_yaml(params))


def params_yaml(params: Mapping[str, Any]) -> str:
    """Return parameters as YAML."""
    return yaml.safe_dump(to_plain_data(params), sort_keys=False)


def _convert(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # np.float64 is a float, but YAML has no representation of it
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, Mapping):
        members = {str(key): _convert(item) for key, item in value.items()}
        return {key: item for key, item in members.items() if item is not _OMITTED}
    if isinstance(value, (list, tuple)):
        return [item for item in map(_convert, value) if item is not _OMITTED]
    # NumPy scalars and arrays: a short array can be a parameter too.
    to_list = getattr(value, "tolist", None)
    return _convert(to_list()) if callable(to_list) and type(value).__module__ == "numpy" else _OMITTED
