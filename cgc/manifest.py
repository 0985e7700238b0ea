"""`manifest.json`: what an artifact is, what goes into and out of its step, digests of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cs_toolkit.step import Execution, Mode, Precision, StepInterface, TensorSpec

FORMAT_VERSION = 6
"""Grows when a file of the artifact changes its meaning; an artifact of another version is compiled again."""

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
PROVENANCE = "provenance.json"
"""Who compiled what, when: in artifacts that a program has made, see `cgc.manifest`."""

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
"""What an artifact of each execution mode consists of, beside the manifest and its executables."""

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name without a folder: a manifest never leads out of its artifact."""


def executable_file(name: str) -> str:
    """The file of an executable: what `jax.export` has serialized."""
    return f"{name}.jaxexport"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Tensor(_Frozen):
    """One argument or result of the step; `dtype` is the IR's, before 64-bit integers are narrowed."""

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
        """The interface of a module in its JSON form."""
        return cls(
            inputs=[_to_json(spec) for spec in interface.inputs],
            state=[_to_json(spec) for spec in interface.state],
            outputs=[_to_json(spec) for spec in interface.outputs],
            updated=list(interface.updated),
        )

    def to_step(self) -> StepInterface:
        """The inverse of `from_step`."""
        return StepInterface(
            inputs=tuple(_from_json(tensor) for tensor in self.inputs),
            state=tuple(_from_json(tensor) for tensor in self.state),
            outputs=tuple(_from_json(tensor) for tensor in self.outputs),
            updated=tuple(self.updated),
        )


class ExecutableEntry(_Frozen):
    """One compiled function of the step; `executable_file` tells where it lies.

    Attributes:
        name: unique in the artifact.
        interface: what goes into and comes out of this function, under names of its own.
    """

    name: FileName
    interface: Interface


class FabricName(_Frozen):
    """The fabric that the step is placed on.

    Attributes:
        name: as in `configs/`.
        processing_elements: of the whole fabric.
    """

    name: str
    processing_elements: int = Field(gt=0)


class _WaferEstimates(_Frozen):
    """What the performance model predicts in every execution mode; not measured.

    Attributes:
        samples_per_s: the rate at the fabric's clock.
        active_pes: processing elements that the kernels take.
        total_utilization: their share of the fabric, 0 to 1.
    """

    samples_per_s: float = Field(gt=0)
    active_pes: int = Field(ge=0)
    total_utilization: float = Field(ge=0, le=1)


class PipelinedEstimates(_WaferEstimates):
    """Those of a step whose layers are on the wafer at once.

    Attributes:
        execution: tells the estimates of one mode from those of another.
        deltat_cycles: cycles between two samples, of one copy of the model.
        replicas: copies of the model on the wafer, which share the samples of a step.
    """

    execution: Literal["pipelined"] = "pipelined"
    deltat_cycles: int = Field(gt=0)
    replicas: int = Field(default=1, gt=0)


Bound = Literal["compute", "latency", "weight bandwidth", "activation memory", "update"]
"""What keeps a step with weight streaming from being faster."""


class StreamedEstimates(_WaferEstimates):
    """Those of a step with one layer at a time on the wafer; PEs are those of the largest layer.

    Attributes:
        execution: tells the estimates of one mode from those of another.
        layers: that follow each other.
        recomputed_layers: of them those whose backward part computes the forward part again.
        micro_batches: in which a batch goes through the layers.
        step_s: seconds of a step.
        bound_by: what takes most of them.
    """

    execution: Literal["weight_streaming"] = "weight_streaming"
    layers: int = Field(gt=0)
    recomputed_layers: int = Field(ge=0)
    micro_batches: int = Field(gt=0)
    step_s: float = Field(gt=0)
    bound_by: Bound


Estimates = Annotated[PipelinedEstimates | StreamedEstimates, Field(discriminator="execution")]
"""Estimates of any execution mode, told apart by `execution`; what one mode alone has is read by `match`."""


class FileEntry(_Frozen):
    """A file of the artifact as it was written."""

    sha256: Sha256
    size_bytes: int = Field(ge=0)


class Manifest(_Frozen):
    """The whole manifest.

    Attributes:
        format_version: FORMAT_VERSION of the tool that wrote it.
        tool_version: `cgc.artifact.tool_version` of the tool that wrote it.
        key: the 64 hex digits of the directory's name.
        interface: of the whole step.
        executables: what the step was compiled to, in the order that its mode of execution wants.
        notices: for the user, why the step is executed so; empty where nothing was left to the compiler.
        files: every other file of the artifact by name.
        versions: of python, jax, jaxlib and xdsl at the time of compilation.
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
            raise ValueError(f"{twice[0]!r} is there twice, expected unique names")
        return executables


def _to_json(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape))


def _from_json(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype, tuple(tensor.shape))


@dataclass(frozen=True)
class Provenance:
    """Who compiled what, when and with what; no part of an artifact's key.

    Attributes:
        model: what the program calls its model; empty where it has no name.
        program: path of the program.
        command: its command line.
        compiled_at: local time with its zone, as "2026-03-01 12:30:00 +0100".
        versions: version of the toolkit and what it stands on, by name.
    """

    model: str = ""
    program: str = ""
    command: str = ""
    compiled_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> list[tuple[str, str]]:
        """What is known, as (label, text)."""
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
        """Content of `provenance.json`."""
        return {
            "model": self.model,
            "program": self.program,
            "command": self.command,
            "compiled_at": self.compiled_at,
            "versions": dict(self.versions),
        }
