"""Artifacts: the manifest, and what other parts read in their files."""

from __future__ import annotations

import json

from cgc.artifact import find_older, open_artifact, parse_manifest
from cgc.artifact_floorplan import summarize_floorplan
from cgc.errors import CorruptArtifactError
from cgc.manifest import (
    FILES,
    FORMAT_VERSION,
    MANIFEST,
    ExecutableEntry,
    FabricName,
    FileEntry,
    Interface,
    Manifest,
    PipelinedEstimates,
    StreamedEstimates,
)
from cs_toolkit.floorplan import read_floorplan
from cs_toolkit.step import Execution
from tests.fuzz.target import Choices, Target, encode_text, temporary_file
from tests.fuzz.targets.control import DIGEST, INTERFACE

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
REPORT = {
    "kernels": [{"name": "matmul", "deltat_cycles": 100}, {"name": "relu", "deltat_cycles": 60}],
    "bottleneck": {"limit": "compute", "reason": "largest_kernel"},
    "overall": {"samples_per_s": 1000.0, "bound_by": "compute"},
}
PLAN = {
    "width": 40,
    "height": 30,
    "kernels": {"matmul": [0, 0, 20, 30], "relu": [20, 0, 20, 30]},
    "copies": [[0, 0], [0, 40]],
}
STREAMED_REPORT = {
    "kernel": {"layer": "layer 1", "name": "matmul"},
    "layers": [{"name": "layer 1", "kind": "a"}],
    "kinds": [
        {
            "kind": "a",
            "grid": {"width": 20, "height": 10, "rows": 2, "columns": 2},
            "kernels": [{"name": "matmul", "rectangle": {"x": 0, "y": 0, "width": 20, "height": 10}}],
        }
    ],
    "overall": {"samples_per_s": 1000.0, "bound_by": "weight_bandwidth"},
}


def manifest(execution: Execution) -> bytes:
    """Encode a manifest."""
    wafer = {"samples_per_s": 10.0, "active_pes": 7, "total_utilization": 0.5}
    estimates = (
        PipelinedEstimates(deltat_cycles=100, **wafer)
        if execution == "pipelined"
        else StreamedEstimates(
            layers=2, recomputed_layers=0, micro_batches=1, step_s=0.1, bound_by="compute", **wafer
        )
    )
    names = (*FILES[execution], "step.jaxexport")
    found = Manifest(
        format_version=FORMAT_VERSION,
        tool_version="cgc-1",
        key=DIGEST,
        mode="train",
        precision="float32",
        batch_size=2,
        interface=Interface.from_step(INTERFACE),
        executables=[ExecutableEntry(name="step", interface=Interface.from_step(INTERFACE))],
        fabric=FabricName(name="cs2", processing_elements=850_000),
        estimates=estimates,
        versions={"jax": "0.5"},
        files={name: FileEntry(sha256=EMPTY, size_bytes=0) for name in names},
    )
    return found.model_dump_json(indent=1).encode()


def parse(data: bytes) -> None:
    path = temporary_file(data, f"cs_{DIGEST}/{MANIFEST}").parent
    find_older(path.parent, lambda toolchain: f"{toolchain}")
    found = parse_manifest(data, path)
    for entry in found.executables:
        entry.interface.to_step()
    for name in found.files:
        assert (path / name).resolve().parent == path.resolve()
    for name in (*FILES["pipelined"], *FILES["weight_streaming"], "step.jaxexport"):
        temporary_file(b"", f"cs_{DIGEST}/{name}")
    assert open_artifact(path).step.interface == found.interface.to_step()


def parse_report(data: bytes) -> None:
    choices = Choices(data)
    report, plan = choices.text(), choices.text()
    if text := summarize_floorplan(report, plan or None):
        read_floorplan(text)


def report_seeds() -> list[bytes]:
    pairs = ((REPORT, PLAN), (STREAMED_REPORT, None))
    return [
        encode_text(json.dumps(report).encode()) + encode_text(json.dumps(plan).encode() if plan else b"")
        for report, plan in pairs
    ]


TARGETS = [
    Target(
        "artifacts.manifest",
        parse,
        (CorruptArtifactError,),
        lambda: [manifest("pipelined"), manifest("weight_streaming")],
    ),
    Target("artifacts.report", parse_report, (), report_seeds),
]
