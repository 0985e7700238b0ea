"""`manifest.json`: identity of an artifact, interface of its step, digests of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cs_toolkit.step import Execution, Mode, Precision, StepInterface, TensorSpec

# Incremented when a file of the artifact changes its meaning; artifacts of other versions are recompiled.
FORMAT_VERSION = 6

MANIFEST = "manifest.json"
CIRH_TEXT = "cirh.mlir"
KERNELS_TEXT = "kernels.mlir"
LAIR_TEXT = "lair.mlir"
PLAN = "plan.json"
DELTAT_ESTIMATE = "deltat_estimate.json"
REPORT_TEXT = "compile_report.txt"
REPORT_JSON = "compile_report.json"
REPORT_HTML = "compile_report.html"
SCHEDULE = "schedule.json"
# Only in artifacts that were compiled by a program.
PROVENANCE = "provenance.json"

# Files of an artifact by execution mode, in addition to the manifest and its executables.
FILES: Mapping[Execution, tuple[str, ...]] = {
    "pipelined": (
        CIRH_TEXT,
        KERNELS_TEXT,
        LAIR_TEXT,
        PLAN,
        DELTAT_ESTIMATE,
        REPORT_TEXT,
        REPORT_JSON,
        REPORT_HTML,
    ),
    "weight_streaming": (CIRH_TEXT, SCHEDULE, REPORT_TEXT, REPORT_JSON, REPORT_HTML),
}

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
# A name without a folder: a manifest never leads out of its artifact.
FileName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]


def executable_file(name: str) -> str:
    """Return the name of an executable's file, which `jax.export` has serialized."""
    return f"{name}.jaxexport"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Tensor(_Frozen):
    """One argument or result of the step; `dtype` is that of CIRH, before 64-bit integers are narrowed."""

    name: str
    dtype: str
    shape: list[int]


class Interface(_Frozen):
    """Arguments and results of a step, or of one of its executables, in the order of the function."""

    inputs: list[Tensor]
    state: list[Tensor]
    outputs: list[Tensor]
    updated: list[str]

    @classmethod
    def from_step(cls, interface: StepInterface) -> Interface:
        """Return the JSON form of an interface."""
        return cls(
            inputs=[_to_json(spec) for spec in interface.inputs],
            state=[_to_json(spec) for spec in interface.state],
            outputs=[_to_json(spec) for spec in interface.outputs],
            updated=list(interface.updated),
        )

    def to_step(self) -> StepInterface:
        """Return the interface of a JSON form."""
        return StepInterface(
            inputs=tuple(_from_json(tensor) for tensor in self.inputs),
            state=tuple(_from_json(tensor) for tensor in self.state),
            outputs=tuple(_from_json(tensor) for tensor in self.outputs),
            updated=tuple(self.updated),
        )


class ExecutableEntry(_Frozen):
    """One compiled function of the step, in the file `executable_file(name)`.

    Attributes:
        name: unique in the artifact.
        interface: arguments and results of the function, under its own names.
    """

    name: FileName
    interface: Interface


class FabricName(_Frozen):
    """The fabric that the step is placed on.

    Attributes:
        name: its name in `configs/`.
        processing_elements: number of PEs of the whole fabric.
    """

    name: str
    processing_elements: int = Field(gt=0)


class _WaferEstimates(_Frozen):
    """Predictions of the performance model in every execution mode; not measured.

    Attributes:
        samples_per_s: the rate at the fabric's clock.
        active_pes: PEs of the kernels.
        total_utilization: their share of the fabric, 0 to 1.
    """

    samples_per_s: float = Field(gt=0)
    active_pes: int = Field(ge=0)
    total_utilization: float = Field(ge=0, le=1)


class PipelinedEstimates(_WaferEstimates):
    """Estimates of a step with all layers on the wafer at once.

    Attributes:
        execution: distinguishes the estimates of different modes.
        deltat_cycles: cycles between two samples, of one copy of the model.
        replicas: copies of the model on the wafer, which share the samples of a step.
    """

    execution: Literal["pipelined"] = "pipelined"
    deltat_cycles: int = Field(gt=0)
    replicas: int = Field(default=1, gt=0)


# The bottleneck of a step with weight streaming.
Bound = Literal["compute", "latency", "weight bandwidth", "activation memory", "update"]


class StreamedEstimates(_WaferEstimates):
    """Estimates of a step with one layer at a time on the wafer; PEs are those of the largest layer.

    Attributes:
        execution: distinguishes the estimates of different modes.
        layers: number of layers.
        recomputed_layers: number of layers whose backward part recomputes the forward part.
        micro_batches: number of micro-batches of a batch.
        step_s: seconds of a step.
        bound_by: the bottleneck.
    """

    execution: Literal["weight_streaming"] = "weight_streaming"
    layers: int = Field(gt=0)
    recomputed_layers: int = Field(ge=0)
    micro_batches: int = Field(gt=0)
    step_s: float = Field(gt=0)
    bound_by: Bound


# Estimates of any execution mode, distinguished by `execution`.
Estimates = Annotated[PipelinedEstimates | StreamedEstimates, Field(discriminator="execution")]


class FileEntry(_Frozen):
    """Digest and size of a file of the artifact."""

    sha256: Sha256
    size_bytes: int = Field(ge=0)


class Manifest(_Frozen):
    """The whole manifest.

    Attributes:
        format_version: FORMAT_VERSION of the tool that wrote it.
        tool_version: `cgc.artifact.tool_version` of the tool that wrote it.
        key: the 64 hex digits of the directory's name.
        interface: interface of the whole step.
        executables: compiled functions of the step, in the order that its mode of execution requires.
        notices: reasons of choices that were left to the compiler, for the user.
        files: every other file of the artifact by name.
        versions: versions of python, jax, jaxlib and xdsl at the time of the compile.
    """

    format_version: int
    tool_version: str
    key: Sha256
    mode: Mode
    precision: Precision
    batch_size: int = Field(gt=0)
    interface: Interface
    executables: list[ExecutableEntry] = Field(min_length=1)
    fabric: FabricName
    estimates: Estimates
    notices: list[str] = []
    versions: dict[str, str]
    files: dict[FileName, FileEntry]

    @field_validator("executables")
    @classmethod
    def _names_are_unique(cls, executables: list[ExecutableEntry]) -> list[ExecutableEntry]:
        names = [executable.name for executable in executables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]!r} occurs twice, expected unique names")
        return executables


def _to_json(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape))


def _from_json(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype, tuple(tensor.shape))


@dataclass(frozen=True)
class Provenance:
    """Provenance of an artifact: program, time and versions; not part of the key.

    Attributes:
        model: name of the model in the program; empty if it has none.
        program: path of the program.
        command: its command line.
        compiled_at: local time with its zone, such as "2026-03-01 12:30:00 +0100".
        versions: versions of the toolkit and its dependencies, by name.
        front_end: package of the toolkit that the program uses, "estimator" or "cstorch"; empty if unknown.
    """

    model: str = ""
    program: str = ""
    command: str = ""
    compiled_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    front_end: str = ""

    def lines(self) -> list[tuple[str, str]]:
        """Return the known facts as (label, text)."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        found = (
            ("Model", self.model),
            ("Program", self.program),
            ("Command", self.command),
            ("Compiled", self.compiled_at),
            ("Versions", versions),
        )
        return [(label, text) for label, text in found if text]

    def to_json(self) -> dict[str, object]:
        """Return the content of `provenance.json`."""
        return {
            "model": self.model,
            "program": self.program,
            "command": self.command,
            "compiled_at": self.compiled_at,
            "versions": dict(self.versions),
            "front_end": self.front_end,
        }
