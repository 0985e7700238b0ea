"""A compiled step as workers, CS system and compiler see it: tensors, device types and executables.

It needs only the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from cs_toolkit.errors import ToolkitError

Mode = Literal["train", "eval", "infer"]
MODES: tuple[Mode, ...] = get_args(Mode)
Precision = Literal["float32", "mixed_float16", "mixed_bfloat16", "cbfloat16"]
"""Precision of activations and their gradients."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Execution = Literal["pipelined", "weight_streaming"]
"""Execution modes: all layers at once, each on its part of the wafer; or one layer at a time on the whole
wafer, with weights from MemoryX."""
ExecutionChoice = Literal["auto"] | Execution
"""Choice of the user; auto is pipelined if the step fits the wafer, otherwise weight streaming."""
EXECUTION_CHOICES: tuple[ExecutionChoice, ...] = ("auto", *get_args(Execution))

GLOBAL_STEP = "state.global_step"
"""Name of the global step in the state."""
LOSS = "output_loss"
"""Name of the output of a training step that is its loss; the CS system shows it, too."""
INPUT_BOUND_SHARE = 0.05
"""Part of its time that the device may lack a batch in a run that is not called input-bound."""
MODEL_STATE, OPTIMIZER_STATE, METRIC_STATE = "state.model.", "state.optimizer.", "state.metric."
"""Prefixes of the names of all other state: of the model, its optimizers and metrics."""

ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "uint32": 4,
}
"""Bytes per element, by NumPy name of each type that a step may declare."""

NARROWED = {"int64": "int32", "uint64": "uint32"}
"""Types for which the device uses a narrower type."""


class DtypeError(ToolkitError):
    """The device does not support an element type."""


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor. `dtype` is the NumPy name ("float32", "bfloat16", "bool" ...) that the IR declares."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class StepInterface:
    """Inputs in the order of a batch; state and outputs in the order of the function's arguments and results.

    `updated` names the state that the function replaces, in the order of `state`.
    """

    inputs: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    updated: tuple[str, ...]


@dataclass(frozen=True)
class Executable:
    """One compiled function of a step, without its bytes.

    Attributes:
        name: unique in its step.
        interface: inputs, state and outputs of this function, with its own names.
        sha256: of the bytes that `jax.export` has serialized.
        size_bytes: number of these bytes.
    """

    name: str
    interface: StepInterface
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step, as the client describes it to the CS system.

    Attributes:
        key: the 64 hex digits of its artifact.
        fabric: name of the fabric that it was compiled for.
        execution: its execution mode; an `Execution`, or one of another version of the toolkit.
        interface: of the whole step.
        executables: at least one; the engine knows their order and names.
        schedule: with weight streaming, the schedule as text (`cs_toolkit.layered_step`), else empty; its
            function *i* is executable *i*.
        floorplan: for the status of the system, as text (`cs_toolkit.floorplan`); may be empty.
    """

    key: str
    fabric: str
    execution: str
    interface: StepInterface
    executables: tuple[Executable, ...]
    schedule: str = ""
    floorplan: str = ""


class StepSource(Protocol):
    """A compiled step with its bytes, such as an artifact."""

    @property
    def step(self) -> CompiledStep:
        """The step and its executables."""
        ...

    def executable_bytes(self, name: str) -> bytes:
        """Return the bytes of an executable."""
        ...


def device_dtype(name: str) -> str:
    """Return the NumPy name of the type that the device uses for an IR type.

    Raises:
        DtypeError: the device does not support the type.
    """
    # JAX disables 64-bit types by default, and a wafer has none: "int64" is "int32" at the boundary of an
    # executable, on the wire and inside the program.
    narrowed = NARROWED.get(name, name)
    if narrowed not in ITEM_BYTES:
        raise DtypeError(
            f"element type {name!r} cannot be computed on the device; "
            f"expected one of {', '.join(sorted(ITEM_BYTES))}"
        )
    return narrowed


def wire_specs(inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the tensors of a batch on the wire: the inputs of the step with device types."""
    return tuple(TensorSpec(spec.name, device_dtype(spec.dtype), spec.shape) for spec in inputs)


def device_bytes(specs: tuple[TensorSpec, ...]) -> int:
    """Return the bytes of tensors with device types, without padding."""
    return sum(spec.nbytes for spec in wire_specs(specs))
