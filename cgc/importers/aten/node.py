"""The context of a handler of an ATen operation.

A handler takes a `NodeContext` and returns the value of its result, or a tuple of values. `handlers.table`
holds all handlers. Element types follow ATen's own promotion, which the recorded results show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, INTEGERS, element_type, numpy_dtype, shape_of
from cgc.importers.aten.graph import Node, Tensor
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, Shape, dtype_of

_WIDTHS = ("uint8", "int8", "int32", "int64")
_CATEGORY = {"bool": 0, **dict.fromkeys(INTEGERS, 1), **dict.fromkeys(FLOATS, 2)}


@dataclass(frozen=True)
class ClassGrad:
    """The gradient of a negative log likelihood, before anything but `log_softmax` has read it.

    Attributes:
        scale: factor of each row, of the shape of the labels.
        backprop: softmax of the logits less the one-hot labels, zero where a row is ignored; None where the
            likelihood was not made of logits.
        dense: makes the gradient by the log probabilities themselves.
    """

    scale: SSAValue
    backprop: SSAValue | None
    dense: Callable[[], SSAValue]


@dataclass(frozen=True)
class Complex:
    """A complex tensor.

    Attributes:
        re: the real parts, float32.
        im: the imaginary parts.
    """

    re: SSAValue
    im: SSAValue

    @classmethod
    def split(cls, e: Emitter, pairs: SSAValue) -> Complex:
        """Split pairs along a last axis into a complex tensor."""
        shape = shape_of(pairs)
        ones = [1] * len(shape)
        parts = (
            e.slice(pairs, [*[0] * (len(shape) - 1), part], [*shape[:-1], part + 1], ones) for part in (0, 1)
        )
        return cls(*(e.reshape(part, shape[:-1]) for part in parts))

    @classmethod
    def of(cls, e: Emitter, value: Value) -> Complex:
        """Return a value, with zeros as imaginary parts if it is real."""
        if isinstance(value, Complex):
            return value
        assert isinstance(value, SSAValue)
        return cls(value, e.like(0, value))

    def join_parts(self, e: Emitter) -> SSAValue:
        """Return pairs along a last axis."""
        shape = shape_of(self.re)
        return e.emit(ops.ConcatOp([e.reshape(x, (*shape, 1)) for x in (self.re, self.im)], len(shape)))


@dataclass(frozen=True)
class Deferred:
    """A value that few steps read.

    Attributes:
        dense: makes it, where one does.
    """

    dense: Callable[[], SSAValue]


@dataclass(frozen=True)
class Factors:
    """Factors of matrices whose rows were exchanged.

    Attributes:
        permutation: for each row of the product of the factors, the row of the matrix.
        of_determinant: they were computed for a determinant.
    """

    permutation: SSAValue
    of_determinant: bool


@dataclass
class StepState:
    """State that the operations of one step share.

    Attributes:
        seed: seed of all random operations.
        global_step: the number of the step.
        logits: log probabilities over the last axis -> their logits.
        backprops: log probabilities and labels -> gradients of a cross entropy by the logits.
        variances: 1 / sqrt(variance + eps) that PyTorch saves -> variance of a batch norm.
        factors: pivots that PyTorch keeps for a gradient -> factors of matrices.
        draws: number of random operations so far.
    """

    seed: int
    global_step: SSAValue
    logits: dict[SSAValue, SSAValue] = field(default_factory=dict)
    backprops: dict[tuple[SSAValue, SSAValue], SSAValue] = field(default_factory=dict)
    variances: dict[SSAValue, SSAValue] = field(default_factory=dict)
    factors: dict[SSAValue, Factors] = field(default_factory=dict)
    draws: int = 0


Value: TypeAlias = "SSAValue | Complex | ClassGrad | Deferred | None"
Result: TypeAlias = "Value | Sequence[Value]"
Handler: TypeAlias = Callable[["NodeContext"], Result]
Table: TypeAlias = dict[str, Handler]


@dataclass(frozen=True)
class NodeContext:
    """One operation to import.

    Attributes:
        node: the operation.
        emit: builds the body of the step.
        step: what operations share.
        value_of: the value of a tensor of the graph.
    """

    node: Node
    emit: Emitter
    step: StepState
    value_of: Callable[[Tensor], Value]

    @property
    def shape(self) -> Shape:
        """Sizes of the first result."""
        return self.result().shape

    @property
    def dtype(self) -> str:
        """Element type of the first result."""
        return self.result().dtype

    def result(self, position: int = 0) -> Tensor:
        """Return a result of the operation.

        Raises:
            RefusedError: the operation leaves it out.
        """
        found = self.node.results[position]
        if found is None:
            raise RefusedError(Kind.USAGE, f"result {position} is left out, expected a tensor")
        return found

    def arg(self, name: str, default: Any = None) -> Any:
        """Return a Python value among the arguments; the default where the operation has no such argument."""
        return self.node.arguments.get(name, default)

    def raw(self, name: str) -> Value:
        """Return the value of a tensor argument as it is, also of a value that several ops make."""
        return self.value_of(self.node.arguments[name])

    def x(self, name: str = "self") -> SSAValue:
        """Return a tensor argument; a number becomes a constant of the result's element type."""
        return self.value(self.node.arguments[name])

    def maybe(self, name: str) -> SSAValue | None:
        """Return a tensor argument that may be left out."""
        return None if self.node.arguments.get(name) is None else self.x(name)

    def xs(self, name: str) -> list[SSAValue]:
        """Return a list of tensors."""
        return [self.value(item) for item in self.node.arguments[name]]

    def cast(self, name: str = "self") -> SSAValue:
        """Return a tensor or number in the result's element type."""
        return self.value(self.node.arguments[name], self.dtype)

    def promote(self, *names: str) -> list[SSAValue]:
        """Return tensors and numbers in the element type of their computation."""
        dtype = promote([self.node.arguments[name] for name in names])
        return [self.value(self.node.arguments[name], dtype) for name in names]

    def axis(self, name: str = "dim", source: str = "self") -> int:
        """Return an axis, counted from the front."""
        return self.positive(self.node.arguments[name], len(self.node.arguments[source].shape))

    def axes(self, name: str = "dim", source: str = "self") -> tuple[int, ...]:
        """Return axes, counted from the front; all of them where none is given, none of a number's."""
        rank = len(self.node.arguments[source].shape)
        if not rank:
            return ()
        given = self.node.arguments.get(name)
        given = [given] if isinstance(given, int) else given
        return tuple(self.positive(axis, rank) for axis in given) if given else tuple(range(rank))

    @staticmethod
    def positive(axis: int, rank: int) -> int:
        """Return an axis counted from the front."""
        return axis + rank if axis < 0 else axis

    def value(self, argument: Any, dtype: str | None = None) -> SSAValue:
        """Return the value of a tensor or number among the arguments, in an element type if one is given.

        Raises:
            RefusedError: nothing computes the tensor.
        """
        if not isinstance(argument, Tensor):
            return self.emit.constant(np.asarray(argument, numpy_dtype(element_type(dtype or self.dtype))))
        value = self.value_of(argument)
        if isinstance(value, ClassGrad | Deferred):
            value = value.dense()
        if isinstance(value, Complex):
            raise RefusedError(Kind.TYPE, f"its argument %{argument.id} is complex, expected real numbers")
        if value is None:
            raise RefusedError(Kind.USAGE, f"its argument %{argument.id} has no value on the device")
        return value if dtype is None or dtype_of(value) == dtype else self.emit.cast(value, dtype)


def promote(arguments: Sequence[Any]) -> str:
    """Return the element type in which ATen computes with these tensors and numbers.

    Tensors with dimensions decide. Tensors without dimensions, and then numbers, count only if they are of a
    higher category: bool, integer, float (torch.result_type).
    """
    groups: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for argument in arguments:
        if isinstance(argument, Tensor):
            groups[2 if argument.shape else 1].append(argument.dtype)
        elif isinstance(argument, bool):
            groups[0].append("bool")
        else:
            groups[0].append("int64" if isinstance(argument, int) else "float32")
    found = ""
    for rank in (2, 1, 0):
        if groups[rank]:
            widest = _widest(groups[rank])
            if not found or _CATEGORY[widest] > _CATEGORY[found]:
                found = widest
    return found


def _widest(dtypes: Sequence[str]) -> str:
    category = max(_CATEGORY[dtype] for dtype in dtypes)
    kinds = {dtype for dtype in dtypes if _CATEGORY[dtype] == category}
    if len(kinds) == 1:
        return next(iter(kinds))
    if category == 2:
        return "float32"
    return "int32" if kinds == {"uint8", "int8"} else max(kinds, key=_WIDTHS.index)
