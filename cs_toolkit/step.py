"""What a step is to whoever feeds or runs it: its tensors by name, the types the device computes in, and what
was compiled of it.

Workers, the CS system and the compiler agree on this module. It needs nothing but Python.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from cs_toolkit.errors import ToolkitError

Mode = Literal["train", "eval", "infer"]
MODES: tuple[Mode, ...] = get_args(Mode)
Precision = Literal["float32", "mixed_float16", "mixed_bfloat16", "cbfloat16"]
"""What activations and their gradients are computed in."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Execution = Literal["pipelined", "weight_streaming"]
"""How the CS system executes a step: all layers at once, each on its own part of the wafer; or one layer at a
time on the whole wafer, whose weights come from MemoryX."""
ExecutionChoice = Literal["auto"] | Execution
"""What a user may ask for; auto is pipelined where the step fits the wafer, else weight streaming."""
EXECUTION_CHOICES: tuple[ExecutionChoice, ...] = ("auto", *get_args(Execution))

GLOBAL_STEP = "state.global_step"
"""The name of the counter of steps in the state."""
MODEL_STATE, OPTIMIZER_STATE, METRIC_STATE = "state.model.", "state.optimizer.", "state.metric."
"""What the names of all other state begin with: of the model, of its optimizers, of metrics."""

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
"""Bytes of an element, by the numpy name of each type that a step may declare."""

NARROWED = {"int64": "int32", "uint64": "uint32"}
"""Types that the device computes in another type."""


class DtypeError(ToolkitError):
    """An element type that the device does not compute in."""


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor. `dtype` is a numpy name ("float32", "bfloat16", "bool" ...) as the IR declares it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one such tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class StepInterface:
    """Inputs in batch order; state and outputs in the order of the function's arguments and results.

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
        interface: what goes into and comes out of this function, under names of its own.
        sha256: of the bytes, which `jax.export` has serialized.
        size_bytes: how many.
    """

    name: str
    interface: StepInterface
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step as the CS system is told of it.

    Attributes:
        key: the 64 hex digits of its artifact.
        fabric: name of the fabric that it was compiled for.
        execution: the engine that it was compiled for; an `Execution`, or one that another version knows.
        interface: what goes into and comes out of the whole step.
        executables: what the engine runs, at least one; it knows their order and their names.
        schedule: with weight streaming the order of the calls as text (`cs_toolkit.layered_step`), else
            empty; function *i* of it is executable *i*.
    """

    key: str
    fabric: str
    execution: str
    interface: StepInterface
    executables: tuple[Executable, ...]
    schedule: str = ""


class StepSource(Protocol):
    """A compiled step with its bytes, such as an artifact."""

    @property
    def step(self) -> CompiledStep:
        """The step and its executables."""
        ...

    def executable_bytes(self, name: str) -> bytes:
        """The bytes of one of them."""
        ...


def device_dtype(name: str) -> str:
    """The numpy name of the type that the device computes an IR type in.

    jax keeps 64-bit types off by default, and a wafer has none; "int64" is therefore "int32" at the
    boundary of an executable, on the wire and inside the program. All other types are their own.

    Raises:
        DtypeError: a step has no such type.
    """
    narrowed = NARROWED.get(name, name)
    if narrowed not in ITEM_BYTES:
        raise DtypeError(
            f"element type {name!r} cannot be computed on the device; "
            f"expected one of {', '.join(sorted(ITEM_BYTES))}"
        )
    return narrowed


def wire_specs(inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The tensors of a batch on the wire: the step's inputs in the types that the device computes in."""
    return tuple(TensorSpec(spec.name, device_dtype(spec.dtype), spec.shape) for spec in inputs)


def device_bytes(specs: tuple[TensorSpec, ...]) -> int:
    """Bytes of tensors in the types that the device computes in: of a batch on the wire, without padding."""
    return sum(spec.nbytes for spec in wire_specs(specs))
