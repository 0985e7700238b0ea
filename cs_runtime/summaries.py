"""The summaries that a run leaves in `model_dir` and in the current directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cs_runtime.files import write_text
from cs_runtime.settings import RunSettings
from cs_runtime.timeline import Timeline
from cs_toolkit.step import TensorSpec, device_bytes
from cs_toolkit.version import __version__

if TYPE_CHECKING:
    from cgc.manifest import Estimates
    from cs_toolkit.fabric import Fabric  # its pydantic is a fifth of the imports of a worker

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
