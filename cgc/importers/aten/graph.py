"""A recorded step of a PyTorch program as data: ATen operations on values that are written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The element type of complex tensors, which a step computes as pairs of float32.
COMPLEX = "complex64"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One value.

    Attributes:
        id: its number in the graph.
        shape: sizes of its dimensions.
        dtype: the numpy name of its element type ("float32", "bfloat16", "complex64" ...).
    """

    id: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def stored(self) -> tuple[str, tuple[int, ...]]:
        """Element type and shape of its array: complex numbers are pairs along a last axis."""
        return ("float32", (*self.shape, 2)) if self.dtype == COMPLEX else (self.dtype, self.shape)


# A Tensor, a Python value, None, an element type by its name, or a list of these.
Argument: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
        op: "namespace.name.overload", such as "aten.add.Tensor".
        arguments: by the names of the operation's schema, with its defaults.
        results: one for each result of the schema; None where an operation leaves one out.
        layer: path of the module that it belongs to, from the outermost in; of a gradient that of its
            forward operation.
        source: "file:line" of the user's program.
        half: the 16-bit format of the autocast that it runs in ("bfloat16" ...); None outside of one.
        library: "package/file:line" of the library that the program calls there; None without one.
    """

    op: str
    arguments: Mapping[str, Argument]
    results: tuple[Tensor | None, ...]
    layer: tuple[str, ...] = ()
    source: str | None = None
    half: str | None = None
    library: str | None = None

    def tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments."""
        found: list[Tensor] = []
        for argument in self.arguments.values():
            items = argument if isinstance(argument, list | tuple) else (argument,)
            found += [item for item in items if isinstance(item, Tensor)]
        return found


def is_complex(node: Node) -> bool:
    """Return whether an operation reads or makes a complex tensor."""
    return any(tensor is not None and tensor.dtype == COMPLEX for tensor in (*node.tensors(), *node.results))


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is the same in every step."""

    tensor: Tensor
    array: NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of the program that must hold in every step.

    Attributes:
        tensor: the truth value, without dimensions.
        error: the error that the program raises if it does not hold, with its line.
    """

    tensor: Tensor
    error: str


@dataclass(slots=True)
class Graph:
    """One step.

    Attributes:
        nodes: operations in the order in which they were called.
        state: values before the step by resource name ("state.model.fc.weight"), in the order of the module.
        inputs: tensors of a batch.
        constants: constants by the number of their value.
        updates: values after the step, of the state that it replaces, by resource name.
        outputs: values that the step returns, by name without "output_".
        half: the 16-bit format of the step's autocast; None without autocast.
        checks: conditions whose truth values are outputs as well, by the names of `check_output`.
    """

    nodes: list[Node] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    constants: dict[int, Constant] = field(default_factory=dict)
    updates: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    half: str | None = None
    checks: list[Check] = field(default_factory=list)


def check_output(number: int) -> str:
    """Return the name of the output of a step with the truth of a check, without "output_"."""
    return f"check/{number}"
