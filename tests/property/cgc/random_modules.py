"""Random valid modules of all ops, for property tests: a generator for every op, `modules` of several."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from cgc.cirh import ops
from cgc.cirh.activation import COMPOSITES, FeaturesGradOp, OutputsGradOp
from cgc.cirh.base import CirhOp
from cgc.cirh.elementwise import BinaryOp, UnaryOp
from cgc.cirh.linear import FourierOp, MatrixOp
from cgc.cirh.random import SeededRandomOp
from cgc.cirh.softmax import AxisOp
from cgc.cirh.text import print_module
from cgc.cirh.traits import Samples
from cgc.cirh.types import (
    ANY,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Tensor,
    numpy_dtype,
    tensor_type,
)

T = TypeVar("T")
SIZES = st.integers(1, 3)
SHAPES = st.lists(SIZES, max_size=3).map(tuple)
FLOAT_VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.5, 1e-3, 255.0, math.inf, -math.inf, math.nan]
INT_VALUES = [0, 1, 2, 3, 7, 100]


@dataclass
class Builder:
    """A function under construction. Operands of a wanted type are reused, or made: constants, arguments."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    constants_only: bool
    block: Block = field(default_factory=Block)
    values: list[SSAValue] = field(default_factory=list)

    def pick(self, options: list[T] | tuple[T, ...]) -> T:
        return self.draw(st.sampled_from(options))  # type: ignore[no-any-return]  # hypothesis infers no T here

    def dtype(self, allowed: frozenset[str]) -> str:
        return self.pick(sorted(allowed))

    def shape(self, min_rank: int = 0) -> tuple[int, ...]:
        return self.draw(SHAPES.filter(lambda shape: len(shape) >= min_rank))  # type: ignore[no-any-return]

    def add(self, op: CirhOp) -> None:
        self.block.add_op(op)
        self.values.extend(op.results)

    def need(self, tensor: Tensor) -> SSAValue:
        fitting = [value for value in self.values if value.type == tensor]
        if fitting and self.draw(st.integers(0, 3)):
            return self.pick(fitting)
        if self.constants_only or self.draw(st.booleans()):
            constant = self.constant(tensor)
            self.add(constant)
            return constant.result
        argument = self.block.insert_arg(tensor, len(self.block.args))
        self.values.append(argument)
        return argument

    def constant(self, tensor: Tensor) -> ops.ConstOp:
        dtype = numpy_dtype(tensor.element_type)
        values = [0, 1] if dtype == np.bool_ else INT_VALUES if dtype.kind in "iu" else FLOAT_VALUES
        shape = tensor.get_shape()
        if self.draw(st.booleans()):
            return ops.ConstOp.splat(self.pick(values), tensor)
        flat = [self.pick(values) for _ in range(math.prod(shape))]
        return ops.ConstOp.from_array(np.array(flat, np.float64).astype(dtype).reshape(shape))


def _broadcast(b: Builder) -> CirhOp:
    shape = b.shape()
    dims = [dim for dim in range(len(shape)) if b.draw(st.booleans())]
    source = [b.pick([1, shape[dim]]) for dim in dims]
    return ops.BroadcastInDimOp(b.need(tensor_type(source, b.dtype(ANY))), shape, dims)


def _concat(b: Builder) -> CirhOp:
    shape, dtype = b.shape(1), b.dtype(ANY)
    axis = b.pick(range(len(shape)))  # type: ignore[arg-type]
    parts = [(*shape[:axis], b.draw(SIZES), *shape[axis + 1 :]) for _ in range(b.draw(SIZES))]
    return ops.ConcatOp([b.need(tensor_type(part, dtype)) for part in parts], axis)


def _slice(b: Builder) -> CirhOp:
    shape = b.shape()
    starts = [b.draw(st.integers(0, size - 1)) for size in shape]
    limits = [b.draw(st.integers(start + 1, size)) for start, size in zip(starts, shape, strict=True)]
    return ops.SliceOp(
        b.need(tensor_type(shape, b.dtype(ANY))), starts, limits, [b.draw(SIZES) for _ in shape]
    )


def _pad(b: Builder) -> CirhOp:
    shape, dtype = b.shape(), b.dtype(ANY)
    low, high = ([b.draw(st.integers(0, 1)) for _ in shape] for _ in range(2))
    return ops.PadOp(b.need(tensor_type(shape, dtype)), b.need(tensor_type((), dtype)), low, high)


def _matmul(b: Builder) -> CirhOp:
    batch = tuple(b.draw(st.lists(SIZES, max_size=1)))
    rows, inner, columns, dtype = b.draw(SIZES), b.draw(SIZES), b.draw(SIZES), b.dtype(NUMBERS)
    flip_a, flip_b = b.draw(st.booleans()), b.draw(st.booleans())
    a = (inner, rows) if flip_a else (rows, inner)
    right = (columns, inner) if flip_b else (inner, columns)
    left_value, right_value = (b.need(tensor_type(batch + part, dtype)) for part in (a, right))
    return ops.MatMulOp(left_value, right_value, flip_a, flip_b)


def _reduce(b: Builder) -> CirhOp:
    shape, kind = b.shape(), b.pick(sorted(ops_reduce_dtypes))
    dims = [dim for dim in range(len(shape)) if b.draw(st.booleans())]
    x = b.need(tensor_type(shape, b.dtype(ops_reduce_dtypes[kind])))
    return ops.ReduceOp(x, kind, dims, b.draw(st.booleans()))


def _reshape(b: Builder) -> CirhOp:
    shape = b.shape()
    target = b.pick([(math.prod(shape),), (1, *shape), shape[::-1], (*shape, 1)])
    return ops.ReshapeOp(b.need(tensor_type(shape, b.dtype(ANY))), target)


def _gather(b: Builder) -> CirhOp:
    x, indices = tensor_type(b.shape(1), b.dtype(ANY)), tensor_type(b.shape(), b.dtype(INTEGERS))
    return ops.GatherOp(b.need(x), b.need(indices), b.draw(st.integers(0, len(x.get_shape()) - 1)))


def _scatter(b: Builder) -> CirhOp:
    rows, rest, result_rows = b.draw(SIZES), b.shape(), b.draw(SIZES)
    indices = b.need(tensor_type((rows,), b.dtype(INTEGERS)))
    updates = b.need(tensor_type((rows, *rest), b.dtype(NUMBERS)))
    return ops.ScatterNdOp(indices, updates, (result_rows, *rest))


def _scatter_rows(b: Builder) -> CirhOp:
    shape, kind, count = b.shape(1), b.pick(["SET", "ADD"]), b.draw(SIZES)
    dtype = b.dtype(ANY if kind == "SET" else NUMBERS)
    indices = b.need(tensor_type((count,), b.dtype(INTEGERS)))
    updates = b.need(tensor_type((count, *shape[1:]), dtype))
    return ops.ScatterOp(b.need(tensor_type(shape, dtype)), indices, updates, kind)


def _unique(b: Builder) -> CirhOp:
    dtypes = frozenset({"int32", "int64"})
    return ops.UniqueOp(b.need(tensor_type((b.draw(SIZES),), b.dtype(dtypes))), b.dtype(dtypes))


def _one_hot(b: Builder) -> CirhOp:
    shape, dtype = b.shape(), b.dtype(ANY)
    on, off = b.need(tensor_type((), dtype)), b.need(tensor_type((), dtype))
    indices = b.need(tensor_type(shape, b.dtype(INTEGERS)))
    return ops.OneHotOp(indices, on, off, b.draw(SIZES), b.draw(st.integers(0, len(shape))))


def _on_axis(op_type: type[Any], allowed: frozenset[str]) -> Callable[[Builder], CirhOp]:
    def make(b: Builder) -> CirhOp:
        shape = b.shape(1)
        x = b.need(tensor_type(shape, b.dtype(allowed)))
        return op_type(x, b.draw(st.integers(0, len(shape) - 1)))  # type: ignore[no-any-return]

    return make


def _of_same(
    op_type: type[Any], count: int, allowed: frozenset[str], min_rank: int = 0
) -> Callable[[Builder], CirhOp]:
    def make(b: Builder) -> CirhOp:
        tensor = tensor_type(b.shape(min_rank), b.dtype(allowed))
        return op_type(*(b.need(tensor) for _ in range(count)))  # type: ignore[no-any-return]

    return make


def _optimizer(op_type: type[Any]) -> Callable[[Builder], CirhOp]:
    def make(b: Builder) -> CirhOp:
        tensor = tensor_type(b.shape(), b.dtype(FLOATS))
        scalar = tensor_type((), tensor.element_type)
        names = [name for name, _ in op_type.get_irdl_definition().operands]
        return op_type(*(b.need(tensor if name in op_type.TENSORS else scalar) for name in names))  # type: ignore[no-any-return]

    return make


@dataclass
class Window:
    """Attributes of a window, and sizes of an image and of its windows."""

    ksize: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    image: tuple[int, int]
    counts: tuple[int, int]


def _window(b: Builder, dilated: bool) -> Window:
    """One that fits; padding is less than the window."""

    def pair(strategy: st.SearchStrategy[int]) -> tuple[int, int]:
        return b.draw(strategy), b.draw(strategy)

    ksize, strides = pair(SIZES), pair(SIZES)
    dilation = pair(SIZES) if dilated else (1, 1)
    top, left = (b.draw(st.integers(0, size - 1)) for size in ksize)
    spans = [(size - 1) * step + 1 for size, step in zip(ksize, dilation, strict=True)]
    image = (spans[0] + b.draw(st.integers(0, 3)), spans[1] + b.draw(st.integers(0, 3)))
    counts = tuple(
        (size + low - span) // stride + 1
        for size, low, span, stride in zip(image, (top, left), spans, strides, strict=True)
    )
    return Window(ksize, strides, (top, 0, left, 0), dilation, image, (counts[0], counts[1]))


def _convolution(b: Builder) -> CirhOp:
    window, batch, groups, dtype = _window(b, dilated=True), b.draw(SIZES), b.draw(SIZES), b.dtype(FLOATS)
    inputs, outputs = b.draw(SIZES), groups * b.draw(SIZES)
    x = tensor_type((batch, *window.image, inputs * groups), dtype)
    kernel = tensor_type((*window.ksize, inputs, outputs), dtype)
    y = tensor_type((batch, *window.counts, outputs), dtype)
    direction = b.pick(["FWD", "BWD_INPUT", "BWD_KERNEL"])
    lhs, rhs, result = {"FWD": (x, kernel, y), "BWD_INPUT": (y, kernel, x), "BWD_KERNEL": (x, y, kernel)}[
        direction
    ]
    attributes = (window.strides, window.padding, window.dilation, groups, direction)
    return ops.ConvolutionOp(b.need(lhs), b.need(rhs), *attributes, result.get_shape())


def _pool(b: Builder, op_type: type[CirhOp]) -> CirhOp:
    window, batch, channels, dtype = _window(b, dilated=False), b.draw(SIZES), b.draw(SIZES), b.dtype(FLOATS)
    x = tensor_type((batch, *window.image, channels), dtype)
    grad = tensor_type((batch, *window.counts, channels), dtype)
    attributes = (window.ksize, window.strides, window.padding)
    if op_type is ops.PoolOp:
        return ops.PoolOp(b.need(x), b.pick(["MAX", "AVG"]), *attributes)
    if op_type is ops.MaxPoolGradOp:
        return ops.MaxPoolGradOp(b.need(x), b.need(grad), *attributes)
    return ops.AvgPoolGradOp(b.need(grad), x.get_shape(), *attributes)


def _batch_norm(b: Builder, op_type: type[CirhOp]) -> CirhOp:
    shape = b.shape(2)
    x, vector = tensor_type(shape, b.dtype(FLOATS)), tensor_type(shape[-1:], b.dtype(FLOATS))
    epsilon, is_training = b.draw(st.floats(0, 1, width=32)), b.draw(st.booleans())
    if op_type is ops.FusedBatchNormOp:
        vectors = [b.need(vector) for _ in range(4)]
        return ops.FusedBatchNormOp(b.need(x), *vectors, epsilon, b.pick([1.0, 0.5]), is_training)
    vectors = [b.need(vector) for _ in range(3)]
    return ops.FusedBatchNormGradOp(b.need(x), b.need(x), *vectors, epsilon, is_training)


def _sample_norm(b: Builder, op_type: type[CirhOp]) -> CirhOp:
    grouped = op_type in (ops.GroupNormOp, ops.GroupNormGradOp)
    groups = b.draw(SIZES)
    shape = (*b.shape(1), groups * b.draw(SIZES))
    x, vector = tensor_type(shape, b.dtype(FLOATS)), tensor_type(shape[-1:], b.dtype(FLOATS))
    moments = tensor_type((shape[0], groups) if grouped else (*shape[:-1], 1), "float32")
    extra: dict[str, Any] = {"num_groups": groups} if grouped else {}
    if op_type in (ops.LayerNormOp, ops.GroupNormOp):
        extra["epsilon"] = b.draw(st.floats(0, 1, width=32))
        return op_type(b.need(x), b.need(vector), b.need(vector), **extra)
    return op_type(*map(b.need, (x, x, vector, moments, moments)), **extra)


def _attention(b: Builder, op_type: type[CirhOp]) -> CirhOp:
    batch, (rows, columns, inner, outer) = b.shape(1), [b.draw(SIZES) for _ in range(4)]
    dtype, scale = b.dtype(FLOATS), b.draw(st.floats(-9, 9, width=32))

    def need(*sizes: int) -> SSAValue:
        return b.need(tensor_type((*batch, *sizes), dtype))

    operands = [need(rows, inner), need(columns, inner), need(columns, outer)]
    keep = need(rows, columns) if b.draw(st.booleans()) else None
    if op_type is ops.AttentionGradOp:
        return ops.AttentionGradOp(need(rows, outer), *operands, need(rows, columns), keep, scale)
    shape = [b.pick([1, size]) for size in (*batch, rows, columns)]
    bias = b.need(tensor_type(shape, dtype)) if b.draw(st.booleans()) else None
    return ops.AttentionOp(*operands, bias, keep, scale)


def _softmax_grad(b: Builder) -> CirhOp:
    tensor = tensor_type(b.shape(1), b.dtype(FLOATS))
    axis = b.draw(st.integers(0, len(tensor.get_shape()) - 1))
    return ops.SoftmaxGradOp(b.need(tensor), b.need(tensor), axis)


def _dot_general(b: Builder) -> CirhOp:
    sizes = {letter: b.draw(SIZES) for letter in "abcxy"}
    left, right = (b.draw(st.permutations(letters)) for letters in ("abcx", "abcy"))
    batching, contracting = b.draw(st.sampled_from(["ab", "ba", "", "c"])), b.draw(st.sampled_from(["", "c"]))
    contracting = "" if set(batching) & set(contracting) else contracting
    dtype = b.dtype(NUMBERS)
    values = [b.need(tensor_type([sizes[i] for i in side], dtype)) for side in (left, right)]
    dims = [[side.index(i) for i in part] for part in (contracting, batching) for side in (left, right)]
    return ops.DotGeneralOp(*values, *dims)


def _extend(b: Builder, op_type: type[Any]) -> CirhOp:
    source, target = b.pick(
        [("bool", "int8"), ("uint8", "int32"), ("int8", "uint32"), ("int32", "int64"), ("uint32", "int64")]
    )
    return op_type(b.need(tensor_type(b.shape(), source)), target)  # type: ignore[no-any-return]


def _fscale(b: Builder) -> CirhOp:
    return ops.FscaleOp(b.need(tensor_type(b.shape(), b.dtype(FLOATS))), b.need(tensor_type((), "int32")))


def _places(b: Builder, size: int) -> tuple[int, int, int]:
    """Begin, end and stride within a dimension."""
    begin, end = b.draw(st.integers(0, size - 1)), b.draw(st.integers(0, size - 1))
    step = b.draw(SIZES)
    return (begin, end + 1, step) if begin <= end else (begin, end - 1, -step)


def _strided(b: Builder, op_type: type[CirhOp]) -> CirhOp:
    shape = b.shape()
    places = [_places(b, size) for size in shape]
    begin, end, strides = ([place[i] for place in places] for i in range(3))
    if op_type is ops.StridedSliceOp:
        return ops.StridedSliceOp(b.need(tensor_type(shape, b.dtype(ANY))), begin, end, strides)
    sliced = [len(range(*place)) for place in places]
    return ops.StridedSliceGradOp(b.need(tensor_type(sliced, b.dtype(NUMBERS))), shape, begin, end, strides)


def _unpad(b: Builder) -> CirhOp:
    shape = b.shape()
    low = [b.draw(st.integers(0, size)) for size in shape]
    high = [b.draw(st.integers(0, size - before)) for size, before in zip(shape, low, strict=True)]
    return ops.UnpadOp(b.need(tensor_type(shape, b.dtype(ANY))), low, high)


def _gather_nd(b: Builder) -> CirhOp:
    x, batch = tensor_type(b.shape(1), b.dtype(ANY)), b.shape()
    indices = tensor_type((*batch, b.draw(st.integers(1, len(x.get_shape())))), b.dtype(INTEGERS))
    return ops.GatherNdOp(b.need(x), b.need(indices))


def _split(b: Builder) -> CirhOp:
    shape, sizes = b.shape(1), b.draw(st.lists(SIZES, min_size=1, max_size=3))
    axis = b.draw(st.integers(0, len(shape) - 1))
    whole = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
    return ops.SplitOp(b.need(tensor_type(whole, b.dtype(ANY))), sizes, axis)


def _last_axis(op_type: type[Any], name: str) -> Callable[[Builder], CirhOp]:
    def make(b: Builder) -> CirhOp:
        shape = b.shape(1)
        x = b.need(tensor_type(shape, b.dtype(NUMBERS)))
        return op_type(x, **{name: b.draw(st.integers(0, shape[-1] - 1))})  # type: ignore[no-any-return]

    return make


def _multinomial(b: Builder) -> CirhOp:
    step = b.need(tensor_type((), b.dtype(INTEGERS)))
    logits = b.need(tensor_type((b.draw(SIZES), b.draw(SIZES)), b.dtype(FLOATS)))
    return ops.RandomMultinomialOp(step, logits, b.draw(SIZES), b.draw(st.integers(0, 9)), 3)


def _start_token_loop(b: Builder) -> CirhOp:
    return ops.StartTokenLoopOp(b.need(tensor_type((b.draw(SIZES), b.draw(SIZES)), "int32")))


def _update_token_loop(b: Builder) -> CirhOp:
    samples, size = b.draw(SIZES), b.draw(SIZES)
    # An argument: of what a StartTokenLoop gives it would be a loop, and a step has one at most.
    current = b.block.insert_arg(tensor_type((samples, size), "int32"), len(b.block.args))
    b.values.append(current)
    place = tensor_type((samples, 1), "int32")
    stop = b.need(tensor_type((samples, b.draw(SIZES), b.draw(SIZES)), "int32"))
    return ops.UpdateTokenLoopOp(current, b.need(place), b.need(place), stop, (3, 1), b.draw(SIZES))


def _composite(b: Builder) -> CirhOp:
    shape, dtype = b.shape(1), b.dtype(FLOATS)
    x, bias = b.need(tensor_type(shape, dtype)), b.need(tensor_type(shape[-1:], dtype))
    return ops.CompositeOp(x, bias, b.pick(sorted(COMPOSITES)))


def _gelu(b: Builder, op_type: type[CirhOp]) -> CirhOp:
    tensor = tensor_type(b.shape(), b.dtype(FLOATS))
    operands = [b.need(tensor) for _ in range(1 if op_type is ops.GeluOp else 2)]
    return op_type(*operands, approximate=b.draw(st.booleans()))  # type: ignore[call-arg]


def _select(b: Builder) -> CirhOp:
    tensor = tensor_type(b.shape(), b.dtype(ANY))
    cond = b.need(tensor_type(tensor.get_shape(), "bool"))
    return ops.SelectOp(cond, b.need(tensor), b.need(tensor))


def _clamp(b: Builder) -> CirhOp:
    tensor = tensor_type(b.shape(), b.dtype(NUMBERS))
    scalar = tensor_type((), tensor.element_type)
    return ops.ClampOp(b.need(tensor), b.need(scalar), b.need(scalar))


def _compare(b: Builder) -> CirhOp:
    tensor = tensor_type(b.shape(), b.dtype(ANY))
    return ops.CompareOp(b.need(tensor), b.need(tensor), b.pick(["EQ", "NE", "LT", "LE", "GT", "GE"]))


def _sparse_loss(b: Builder) -> CirhOp:
    shape = b.shape(1)
    logits = b.need(tensor_type(shape, b.dtype(FLOATS)))
    return ops.SparseSoftmaxCrossEntropyWithLogitsOp(
        logits, b.need(tensor_type(shape[:-1], b.dtype(INTEGERS)))
    )


def _seeded(op_type: type[Any]) -> Callable[[Builder], CirhOp]:
    def make(b: Builder) -> CirhOp:
        step, seed = b.need(tensor_type((), b.dtype(INTEGERS))), b.draw(st.integers(-(2**63), 2**63 - 1))
        return op_type(step, b.shape(), seed, b.draw(st.integers(0, 9)))  # type: ignore[no-any-return]

    return make


def _keyed(b: Builder, op_type: type[Any]) -> CirhOp:
    key = b.need(tensor_type((2,), "int32"))
    return op_type(key, b.need(tensor_type((), b.dtype(INTEGERS))), b.shape())  # type: ignore[no-any-return]


def _fourier(b: Builder, op_type: type[Any]) -> CirhOp:
    *rest, length = b.shape(1)
    if op_type is ops.RfftOp:
        return ops.RfftOp(b.need(tensor_type((*rest, length), "float32")))
    if op_type is ops.FftOp:
        part = tensor_type((*rest, length), "float32")
        return ops.FftOp(b.need(part), b.need(part), b.draw(st.booleans()))
    half = tensor_type((*rest, length // 2 + 1), "float32")
    return ops.IrfftOp(b.need(half), b.need(half), length)


def _matrix(b: Builder, op_type: type[Any]) -> CirhOp:
    *batch, rows, columns = b.shape(2)
    x = b.need(tensor_type((*batch, rows, columns), "float32"))
    if op_type in (ops.QrOp, ops.SvdOp):
        return op_type(x, b.draw(st.booleans()))  # type: ignore[no-any-return]
    a = b.need(tensor_type((*batch, rows, rows), "float32"))
    if op_type is ops.TriangularSolveOp:
        return ops.TriangularSolveOp(a, x, *(b.draw(st.booleans()) for _ in range(3)))
    return op_type(a)  # type: ignore[no-any-return]


def _ctc_loss(b: Builder) -> CirhOp:
    samples, steps, classes, labels = (b.draw(SIZES) for _ in range(4))
    log_probs = b.need(tensor_type((samples, steps, classes), "float32"))
    targets = b.need(tensor_type((samples, labels), b.dtype(INTEGERS)))
    lengths = [b.need(tensor_type((samples,), b.dtype(INTEGERS))) for _ in range(2)]
    return ops.CtcLossOp(log_probs, targets, *lengths, b.draw(st.integers(0, classes - 1)))


def _generator(op_type: type[Any]) -> Callable[[Builder], CirhOp]:
    if op_type in OTHERS:
        return OTHERS[op_type]
    if op_type in (ops.GeluOp, ops.GeluGradOp):
        return partial(_gelu, op_type=op_type)
    if issubclass(op_type, BinaryOp):
        return _of_same(op_type, 2, op_type.DTYPES)
    if issubclass(op_type, FeaturesGradOp | OutputsGradOp | ops.EluGradOp):
        return _of_same(op_type, 2, FLOATS)
    if issubclass(op_type, ops.LeakyReluOp):
        return lambda b: ops.LeakyReluOp(
            b.need(tensor_type(b.shape(), b.dtype(FLOATS))), b.draw(st.floats(-9, 9, width=32))
        )
    if issubclass(op_type, UnaryOp):
        return _of_same(op_type, 1, FLOATS if op_type is ops.IsFiniteOp else op_type.DTYPES)
    if issubclass(op_type, AxisOp):
        return _on_axis(op_type, FLOATS)
    if issubclass(op_type, SeededRandomOp):
        return _seeded(op_type)
    if issubclass(op_type, FourierOp):
        return partial(_fourier, op_type=op_type)
    if issubclass(op_type, MatrixOp):
        return partial(_matrix, op_type=op_type)
    return _optimizer(op_type)


ops_reduce_dtypes = {
    kind: NUMBERS
    if kind in ("ADD", "MUL", "MAX", "MIN")
    else FLOATS
    if kind == "MEAN"
    else INTEGERS | {"bool"}
    for kind in ("ADD", "MUL", "MAX", "MIN", "AND", "OR", "MEAN")
}

OTHERS: dict[type[CirhOp], Callable[[Builder], CirhOp]] = {
    ops.ConstOp: lambda b: b.constant(tensor_type(b.shape(), b.dtype(ANY))),
    ops.ArangeOp: lambda b: ops.ArangeOp(
        b.draw(SIZES), b.draw(st.integers(0, 9)), b.draw(SIZES), b.dtype(NUMBERS)
    ),
    ops.OneHotOp: _one_hot,
    ops.CompareOp: _compare,
    ops.SelectOp: _select,
    ops.ClampOp: _clamp,
    ops.CastOp: lambda b: ops.CastOp(b.need(tensor_type(b.shape(), b.dtype(ANY))), b.dtype(ANY)),
    ops.ReshapeOp: _reshape,
    ops.TransposeOp: lambda b: _transpose(b, b.shape()),
    ops.BroadcastInDimOp: _broadcast,
    ops.ConcatOp: _concat,
    ops.SliceOp: _slice,
    ops.PadOp: _pad,
    ops.GatherOp: _gather,
    ops.ScatterNdOp: _scatter,
    ops.UniqueOp: _unique,
    ops.StartTokenLoopOp: _start_token_loop,
    ops.UpdateTokenLoopOp: _update_token_loop,
    ops.ScatterOp: _scatter_rows,
    ops.ReduceOp: _reduce,
    ops.ArgMaxOp: _on_axis(ops.ArgMaxOp, NUMBERS),
    ops.CumSumOp: _on_axis(ops.CumSumOp, NUMBERS),
    ops.CumProdOp: _on_axis(ops.CumProdOp, NUMBERS),
    ops.CumMaxOp: _on_axis(ops.CumMaxOp, NUMBERS),
    ops.CumLogSumExpOp: _on_axis(ops.CumLogSumExpOp, FLOATS),
    ops.CtcLossOp: _ctc_loss,
    ops.NthOrderStatisticOp: _last_axis(ops.NthOrderStatisticOp, "n"),
    ops.TopKOp: _last_axis(ops.TopKOp, "k"),
    ops.L2NormOp: lambda b: ops.L2NormOp(
        *(b.need(tensor_type(b.shape(), b.dtype(FLOATS))) for _ in range(b.draw(SIZES)))
    ),
    ops.ReduceBiasOp: _on_axis(ops.ReduceBiasOp, NUMBERS),
    ops.CompositeOp: _composite,
    ops.DotGeneralOp: _dot_general,
    ops.ExtSIOp: partial(_extend, op_type=ops.ExtSIOp),
    ops.ExtUIOp: partial(_extend, op_type=ops.ExtUIOp),
    ops.FscaleOp: _fscale,
    ops.StridedSliceOp: partial(_strided, op_type=ops.StridedSliceOp),
    ops.StridedSliceGradOp: partial(_strided, op_type=ops.StridedSliceGradOp),
    ops.UnpadOp: _unpad,
    ops.GatherNdOp: _gather_nd,
    ops.SplitOp: _split,
    ops.RepeatOp: lambda b: ops.RepeatOp(b.need(tensor_type(b.shape(1), b.dtype(ANY))), b.draw(SIZES), -1),
    ops.MatrixBandPartOp: lambda b: ops.MatrixBandPartOp(
        b.need(tensor_type(b.shape(2), b.dtype(ANY))), b.draw(st.integers(-1, 2)), b.draw(st.integers(-1, 2))
    ),
    ops.ConditionalArangeOp: lambda b: ops.ConditionalArangeOp(
        b.need(tensor_type(b.shape(1), "bool")), b.draw(st.integers(0, 3)), b.draw(st.integers(-1, 1))
    ),
    ops.RandomMultinomialOp: _multinomial,
    ops.SoftmaxGradOp: _softmax_grad,
    **{
        op_type: partial(_sample_norm, op_type=op_type)
        for op_type in (ops.LayerNormOp, ops.LayerNormGradOp, ops.GroupNormOp, ops.GroupNormGradOp)
    },
    **{op_type: partial(_attention, op_type=op_type) for op_type in (ops.AttentionOp, ops.AttentionGradOp)},
    ops.MatMulOp: _matmul,
    ops.BiasAddOp: lambda b: _bias_add(b, b.shape(1), b.dtype(NUMBERS)),
    ops.BiasAddGradOp: _of_same(ops.BiasAddGradOp, 1, NUMBERS, min_rank=1),
    ops.ConvolutionOp: _convolution,
    **{
        op_type: partial(_pool, op_type=op_type)
        for op_type in (ops.PoolOp, ops.MaxPoolGradOp, ops.AvgPoolGradOp)
    },
    **{
        op_type: partial(_batch_norm, op_type=op_type)
        for op_type in (ops.FusedBatchNormOp, ops.FusedBatchNormGradOp)
    },
    ops.SparseSoftmaxCrossEntropyWithLogitsOp: _sparse_loss,
    ops.SoftmaxCrossEntropyWithLogitsOp: _of_same(ops.SoftmaxCrossEntropyWithLogitsOp, 2, FLOATS, min_rank=1),
    **{
        op_type: partial(_keyed, op_type=op_type)
        for op_type in (ops.KeyedRandomUniformOp, ops.KeyedRandomNormalOp)
    },
    ops.StatelessRandomUniformOp: lambda b: ops.StatelessRandomUniformOp(
        b.need(tensor_type((2,), "int32")), b.shape()
    ),
}


def _transpose(b: Builder, shape: tuple[int, ...]) -> CirhOp:
    permutation = b.draw(st.permutations(range(len(shape))))
    return ops.TransposeOp(b.need(tensor_type(shape, b.dtype(ANY))), permutation)


def _bias_add(b: Builder, shape: tuple[int, ...], dtype: str) -> CirhOp:
    return ops.BiasAddOp(b.need(tensor_type(shape, dtype)), b.need(tensor_type(shape[-1:], dtype)))


GENERATORS = {op_type: _generator(op_type) for op_type in ops.ALL_OPS}


class Drawn(ModuleOp):
    """A module that shows its text where a test fails."""

    def __repr__(self) -> str:
        return print_module(self)


@st.composite
def modules(
    draw: Callable[[st.SearchStrategy[Any]], Any], constants_only: bool = False, max_ops: int = 12
) -> ModuleOp:
    """A valid module that returns all its values; with `constants_only`, of ops that can be folded."""
    builder = Builder(draw, constants_only)
    allowed = [op for op in ops.ALL_OPS if not constants_only or op.TRAITS.samples is not Samples.DRAWN]
    for _ in range(draw(st.integers(1, max_ops))):
        op = GENERATORS[draw(st.sampled_from(allowed))](builder)
        if draw(st.integers(0, 3)) == 0:
            source = draw(st.sampled_from(['a "b"\\', "m.py:1", "é\n"]))
            layer = draw(st.sampled_from([None, (), ("l",), ("l", '"0"'), ("l", "é/")]))
            op.set_origin(draw(st.text(max_size=5)), source, layer)
        if op.results and draw(st.integers(0, 3)) == 0:
            op.results[0].name_hint = draw(st.sampled_from(["loss", "x", "x_1"]))
        builder.add(op)
    builder.block.add_op(ReturnOp(*builder.values))
    types = [value.type for value in builder.values]
    return Drawn([FuncOp("graph", (builder.block.arg_types, types), Region(builder.block))])
