"""Build the body of a step: constants are shared, and implicit broadcasting becomes explicit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, SSAValue

from cgc.cirh import ops
from cgc.cirh.base import FLOAT32, CirhOp, LayerPath
from cgc.cirh.types import DTYPE_NAMES, dtype_name, element_type, numpy_dtype, shape_of, tensor_of
from cgc.importers.diagnostics import Kind, RefusedError

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Maker: TypeAlias = Callable[..., CirhOp]  # the constructor of an op

# Types that are narrowed on the device where precision allows: for numbers that depend only on the step
# number, and for metrics.
NARROWED = {"float64": "float32"}

_SHARED_CONSTANT_BYTES = 256
_INT32 = np.iinfo(np.int32)


def dtype_of(value: SSAValue) -> str:
    """Return the numpy name of a value's element type."""
    return dtype_name(tensor_of(value))


def narrow_dtype(dtype: str) -> str:
    """Return the type that replaces an element type on the device."""
    return NARROWED.get(dtype, dtype)


def broadcast_shape(*shapes: Sequence[int]) -> Shape:
    """Return the broadcast shape of operands by numpy's rule, which TensorFlow and PyTorch share."""
    try:
        return np.broadcast_shapes(*(tuple(shape) for shape in shapes))
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise RefusedError(Kind.USAGE, f"shapes {listed} cannot be broadcast to one shape") from None


def require_dtype(dtype: str, what: str) -> str:
    """Return the dtype if CIRH has it, else refuse `what`."""
    if dtype not in DTYPE_NAMES:
        raise RefusedError(
            Kind.TYPE, f"{what} has element type {dtype}, expected one of {', '.join(sorted(DTYPE_NAMES))}"
        )
    return dtype


class Emitter:
    """Appends ops to a block and labels each with its origin."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._constants: dict[tuple[str, Shape, bytes], SSAValue] = {}
        self._broadcasts: dict[tuple[SSAValue, Shape, bool], SSAValue] = {}
        self._node: str | None = None
        self._source: str | None = None
        self._layer: LayerPath = ()
        self._float32 = False

    def label(self, node: str | None, source: str | None, layer: LayerPath, *, float32: bool = False) -> None:
        """Set the origin of the ops that follow.

        Args:
            node: the framework's name for the operation.
            source: the user's line, "file:line".
            layer: the layer that it belongs to, () for none; kernels are formed and named by it.
            float32: the program wants it in float32 where others are computed in 16 bits.
        """
        self._float32 = float32
        self._node, self._source, self._layer = node, source, layer

    def emit(self, op: CirhOp) -> SSAValue:
        """Append an op and return its first result."""
        return self.emit_all(op)[0]

    def emit_all(self, op: CirhOp) -> tuple[SSAValue, ...]:
        """Append an op and return its results."""
        op.set_origin(self._node, self._source, self._layer)
        if self._float32:
            op.attributes[FLOAT32] = UnitAttr()
        self._block.add_op(op)
        return tuple(op.results)

    def constant(self, array: Array) -> SSAValue:
        """Return a constant; small ones exist once in a step.

        Raises:
            RefusedError: an element type that CIRH lacks, or an integer beyond the device's 32 bits.
        """
        dtype = require_dtype(array.dtype.name, "the constant")
        if dtype == "int64" and array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
            extreme = array.max() if array.max() > _INT32.max else array.min()
            raise RefusedError(
                Kind.USAGE,
                f"the constant contains {extreme}; the device computes int64 as int32, "
                f"so constants must be between {_INT32.min} and {_INT32.max}",
            )
        if array.nbytes > _SHARED_CONSTANT_BYTES:
            return self.emit(ops.ConstOp.from_array(array))
        key = (dtype, array.shape, array.tobytes())
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self.emit(ops.ConstOp.from_array(array))
        return found

    def compact(self, array: Array) -> SSAValue:
        """Return a constant; slices that repeat along an axis, bit for bit, are kept once and broadcast.

        A large triangle of two numbers is computed from two ranges.
        """
        whole = array
        for axis, size in enumerate(array.shape):
            if size > 1 and _repeats(array, axis):
                array = array.take([0], axis)
        found = triangle(array) if array.nbytes > _SHARED_CONSTANT_BYTES else None
        if found is None:
            return self.broadcast(self.constant(array), whole.shape)
        diagonal, inside, outside = found
        sides = [self.constant(np.asarray(side, array.dtype)) for side in (inside, outside)]
        chosen = self.select(self.lower_triangle(array.shape[-2], array.shape[-1], diagonal), *sides)
        return self.broadcast(self.reshape(chosen, array.shape), whole.shape)

    def lower_triangle(self, rows: int, columns: int, diagonal: int) -> SSAValue:
        """Return where the column is at most the row plus `diagonal`, computed from two ranges."""
        last = self.reshape(self.emit(ops.ArangeOp(rows, diagonal)), (rows, 1))
        return self.compare("GE", last, self.reshape(self.emit(ops.ArangeOp(columns)), (1, columns)))

    def scalar(self, value: float, dtype: str) -> SSAValue:
        """Return a rank-0 constant."""
        return self.constant(np.asarray(value, numpy_dtype(element_type(dtype))))

    def full(self, value: float, shape: Shape, dtype: str) -> SSAValue:
        """Return a constant of one value: a scalar, broadcast."""
        return self.broadcast(self.scalar(value, dtype), shape)

    def like(self, value: float, x: SSAValue) -> SSAValue:
        """Return `full` with the shape and element type of `x`."""
        return self.full(value, shape_of(x), dtype_of(x))

    def reshape(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Reshape; one size may be -1."""
        shape = self._complete(x, shape)
        return x if shape == shape_of(x) else self.emit(ops.ReshapeOp(x, shape))

    @staticmethod
    def _complete(x: SSAValue, shape: Sequence[int]) -> Shape:
        total = math.prod(shape_of(x))
        known = math.prod(size for size in shape if size != -1)
        full = tuple(total // known if size == -1 and known else size for size in shape)
        if math.prod(full) != total or any(size < 0 for size in full):
            raise RefusedError(
                Kind.USAGE, f"a tensor of shape {list(shape_of(x))} cannot be reshaped to {list(shape)}"
            )
        return full

    def transpose(self, x: SSAValue, permutation: Sequence[int]) -> SSAValue:
        """Permute axes: axis `i` of the result is axis `permutation[i]` of `x`."""
        order = tuple(permutation)
        return x if order == tuple(range(len(order))) else self.emit(ops.TransposeOp(x, order))

    def broadcast(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Broadcast by numpy's rule, last axes matched first; each result exists once in a step."""
        shape, own = tuple(shape), shape_of(x)
        if own == shape:
            return x
        key = x, shape, self._float32
        if key not in self._broadcasts:
            dimensions = tuple(range(len(shape) - len(own), len(shape)))
            self._broadcasts[key] = self.emit(ops.BroadcastInDimOp(x, shape, dimensions))
        return self._broadcasts[key]

    def cast(self, x: SSAValue, dtype: str) -> SSAValue:
        """Convert the element type, if it differs."""
        return x if dtype_of(x) == dtype else self.emit(ops.CastOp(x, dtype))

    def binary(self, op_type: Maker, a: SSAValue, b: SSAValue) -> SSAValue:
        """Emit an elementwise op of two operands, broadcast to one shape."""
        shape = broadcast_shape(shape_of(a), shape_of(b))
        return self.emit(op_type(self.broadcast(a, shape), self.broadcast(b, shape)))

    def unary(self, op_type: Maker, x: SSAValue) -> SSAValue:
        """Emit an elementwise op of one operand."""
        return self.emit(op_type(x))

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Return `a + b`, broadcast."""
        return self.binary(ops.AddOp, a, b)

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Return `a - b`, broadcast."""
        return self.binary(ops.SubOp, a, b)

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Return `a * b`, broadcast."""
        return self.binary(ops.MulOp, a, b)

    def div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Return `a / b`, broadcast."""
        return self.binary(ops.DivOp, a, b)

    def scale(self, x: SSAValue, factor: float) -> SSAValue:
        """Return `x * factor`."""
        return self.mul(x, self.scalar(factor, dtype_of(x)))

    def compare(self, direction: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """Compare elementwise, broadcast; direction is EQ, NE, LT, LE, GT or GE."""
        shape = broadcast_shape(shape_of(a), shape_of(b))
        return self.emit(ops.CompareOp(self.broadcast(a, shape), self.broadcast(b, shape), direction))

    def select(self, condition: SSAValue, on_true: SSAValue, on_false: SSAValue) -> SSAValue:
        """Choose elementwise, all three operands broadcast."""
        operands = (condition, on_true, on_false)
        shape = broadcast_shape(*(shape_of(x) for x in operands))
        return self.emit(ops.SelectOp(*(self.broadcast(x, shape) for x in operands)))

    def reduce(self, kind: str, x: SSAValue, axes: Sequence[int], keep_dims: bool = False) -> SSAValue:
        """Reduce over axes; over none it is the identity."""
        return self.emit(ops.ReduceOp(x, kind, tuple(axes), keep_dims)) if axes else x

    def slice(
        self, x: SSAValue, start: Sequence[int], limit: Sequence[int], steps: Sequence[int]
    ) -> SSAValue:
        """Take `start[i] <= position < limit[i]`, `steps[i] > 0` apart, of every axis."""
        shape = shape_of(x)
        if tuple(limit) == shape and not any(start) and all(step == 1 for step in steps):
            return x
        return self.emit(ops.SliceOp(x, tuple(start), tuple(limit), tuple(steps)))

    def pad(
        self, x: SSAValue, low: Sequence[int], high: Sequence[int], value: SSAValue | None = None
    ) -> SSAValue:
        """Pad with a rank-0 value, zero by default."""
        if not any(low) and not any(high):
            return x
        filler = self.scalar(0, dtype_of(x)) if value is None else value
        return self.emit(ops.PadOp(x, filler, tuple(low), tuple(high)))

    def take(self, x: SSAValue, indices: SSAValue, axis: int) -> SSAValue:
        """Take slices of x along an axis by index; the shape of `indices` replaces the axis."""
        return self.emit(ops.GatherOp(x, indices, axis))


def triangle(array: Array) -> tuple[int, Any, Any] | None:
    """Return (diagonal, value on and below it, value above) of a square of two values; None for other arrays.

    The diagonal is 0 or -1; dimensions before the last two have size 1.
    """
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < 2:
        return None
    square = array.reshape(-1, *array.shape[-2:])
    if len(square) != 1:
        return None
    inside, outside = square[0, -1, 0], square[0, 0, -1]
    for diagonal in (0, -1):
        lower = np.tri(len(square[0]), k=diagonal, dtype=bool)
        if inside != outside and (square[0] == np.where(lower, inside, outside)).all():
            return diagonal, inside, outside
    return None


def _repeats(array: Array, axis: int) -> bool:
    """Return whether all slices along an axis are equal."""
    # Compared as bits: NaN and -0.0 are values too.
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return bool((bits == bits.take([0], axis)).all())
