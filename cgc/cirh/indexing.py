"""Ops that read or replace elements by position: slices, bands, rows, repetitions.

`Unique` and `Scatter` make the sparse update of an embedding. How many different rows a batch names depends
on its data, but shapes are static: as many rows are kept as there are names, and those beyond the different
ones are padding. Their index is `PADDING_INDEX`, which no tensor has a row for. What is computed for such
rows has no meaning, and `Scatter` drops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from numpy.typing import DTypeLike
from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    INT,
    INTS,
    CirhOp,
    IntParameter,
    IntsParameter,
    TextParameter,
    Value,
    int_attr,
    ints_attr,
    operand_type,
    text_attr,
)
from cgc.cirh.traits import STREAM, Elements, OpTraits, Order, Samples, Work, mixes, moves
from cgc.cirh.types import (
    ANY,
    BOOL,
    INTEGERS,
    NUMBERS,
    ElementType,
    Tensor,
    element_count,
    tensor_of,
    tensor_type,
)


def strided_shape(
    op: type[CirhOp], shape: Sequence[int], begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> list[int]:
    """Return the sizes of the slice from `begin` to `end`, in steps of `strides`, of a tensor."""
    if {len(begin), len(end), len(strides)} != {len(shape)}:
        op.fail(
            f"got {len(begin)} begin, {len(end)} end and {len(strides)} strides, "
            f"expected {len(shape)} of each"
        )
    sizes = []
    for dim, (size, first, last, step) in enumerate(zip(shape, begin, end, strides, strict=True)):
        places = range(first, last, step) if step else range(0)
        if not step or (places and not (0 <= places[0] < size and 0 <= places[-1] < size)):
            op.fail(
                f"dimension {dim} has begin {first}, end {last}, stride {step}; expected places "
                f"from 0 to {size - 1} (an end of -1 lies before the first) and a stride other than 0"
            )
        sizes.append(len(places))
    return sizes


class StridedOp(CirhOp):
    """Base of the strided slice and its gradient: their attributes."""

    begin_attr = prop_def(INTS, prop_name="begin")
    end_attr = prop_def(INTS, prop_name="end")
    strides_attr = prop_def(INTS, prop_name="strides")
    begin = IntsParameter("begin")
    end = IntsParameter("end")
    strides = IntsParameter("strides")

    def _build(
        self, x: Value, result: Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
    ) -> None:
        properties = {"begin": ints_attr(begin), "end": ints_attr(end), "strides": ints_attr(strides)}
        CirhOp.__init__(self, [x], [result], properties)


@irdl_op_definition
class StridedSliceOp(StridedOp):
    """The elements at `begin`, `begin + strides` ... before `end`; strides may be negative.

    Positions count from the front; with a negative stride an end of -1 lies before the first element.
    """

    name = "cirh.StridedSlice"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
    x = operand_def()
    result = result_def()

    def __init__(self, x: Value, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> None:
        self._build(x, self.infer(operand_type(x), begin, end, strides), begin, end, strides)

    @classmethod
    def infer(cls, x: Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> Tensor:
        """Result type: as many elements as there are positions, in every dimension."""
        return tensor_type(strided_shape(cls, x.get_shape(), begin, end, strides), x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.begin, self.end, self.strides),)


@irdl_op_definition
class StridedSliceGradOp(StridedOp):
    """Zeros with grad at the positions that the strided slice of such a tensor takes."""

    name = "cirh.StridedSliceGrad"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED, gradient_of=StridedSliceOp)
    grad = operand_def()
    result = result_def()

    def __init__(
        self,
        grad: Value,
        shape: Sequence[int],
        begin: Sequence[int],
        end: Sequence[int],
        strides: Sequence[int],
    ) -> None:
        """`shape` is that of the tensor that was sliced."""
        self._build(grad, self.infer(operand_type(grad), shape, begin, end, strides), begin, end, strides)

    @classmethod
    def infer(
        cls,
        grad: Tensor,
        shape: Sequence[int],
        begin: Sequence[int],
        end: Sequence[int],
        strides: Sequence[int],
    ) -> Tensor:
        """Result type: `shape`, whose strided slice has the shape of grad."""
        cls.require_dtype("grad", grad, NUMBERS)
        sliced = strided_shape(cls, shape, begin, end, strides)
        cls.require_same("grad", grad, "the slice", tensor_type(sliced, grad.element_type))
        return tensor_type(shape, grad.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        shape = tensor_of(self.result).get_shape()
        return (self.infer(tensor_of(self.grad), shape, self.begin, self.end, self.strides),)


@irdl_op_definition
class UnpadOp(CirhOp):
    """x without the `low[i]` first and the `high[i]` last elements of dimension i."""

    name = "cirh.unpad"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
    x = operand_def()
    result = result_def()
    low_attr = prop_def(INTS, prop_name="low")
    high_attr = prop_def(INTS, prop_name="high")
    low = IntsParameter("low")
    high = IntsParameter("high")

    def __init__(self, x: Value, low: Sequence[int], high: Sequence[int]) -> None:
        result = self.infer(operand_type(x), low, high)
        super().__init__([x], [result], {"low": ints_attr(low), "high": ints_attr(high)})

    @classmethod
    def infer(cls, x: Tensor, low: Sequence[int], high: Sequence[int]) -> Tensor:
        """Result type: every size less its low and high padding."""
        shape = x.get_shape()
        fits = len(low) == len(high) == len(shape) and min(*low, *high, 0, 0) >= 0
        sizes = [n - before - after for n, before, after in zip(shape, low, high, strict=False)]
        if not fits or min(*sizes, 0, 0) < 0:
            cls.fail(
                f"low is {tuple(low)} and high {tuple(high)}, expected {len(shape)} sizes of 0 or more each, "
                f"no more than {x} has"
            )
        return tensor_type(sizes, x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.low, self.high),)


@irdl_op_definition
class GatherNdOp(CirhOp):
    """Slices of x by coordinates, as `tf.gather_nd`: indices `[..., K]` name the first K dimensions of x."""

    name = "cirh.GatherNd"
    TRAITS: ClassVar[OpTraits] = moves(Elements.LOOKED_UP)
    x = operand_def()
    indices = operand_def()
    result = result_def()

    def __init__(self, x: Value, indices: Value) -> None:
        super().__init__([x, indices], [self.infer(operand_type(x), operand_type(indices))])

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor) -> Tensor:
        """Result type: `[..., what is left of x]`."""
        cls.require_dtype("indices", indices, INTEGERS)
        places, shape = indices.get_shape(), x.get_shape()
        if not places or not 1 <= places[-1] <= len(shape):
            cls.fail(
                f"indices has type {indices}, expected [..., K] with 1 <= K <= {len(shape)}, the rank of x"
            )
        result = tensor_type([*places[:-1], *shape[places[-1] :]], x.element_type)
        if 0 in shape[: places[-1]] and element_count(result):
            cls.fail(f"x has type {x}, expected elements to pick in its first {places[-1]} dimensions")
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.indices)),)


@irdl_op_definition
class MatrixBandPartOp(CirhOp):
    """The matrices in the last two dimensions, with zeros outside of a band around the diagonal.

    `num_lower` diagonals below it and `num_upper` above it are kept, all of them if the number is negative.
    """

    name = "cirh.MatrixBandPart"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
    x = operand_def()
    result = result_def()
    num_lower_attr = prop_def(INT, prop_name="num_lower")
    num_upper_attr = prop_def(INT, prop_name="num_upper")
    num_lower = IntParameter("num_lower")
    num_upper = IntParameter("num_upper")

    def __init__(self, x: Value, num_lower: int, num_upper: int) -> None:
        properties = {"num_lower": int_attr(num_lower), "num_upper": int_attr(num_upper)}
        super().__init__([x], [self.infer(operand_type(x))], properties)

    @classmethod
    def infer(cls, x: Tensor) -> Tensor:
        """Result type: the type of x."""
        cls.require_dtype("x", x, ANY)
        if len(x.get_shape()) < 2:
            cls.fail(f"x has type {x}, expected rank 2 or more")
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x)),)


@irdl_op_definition
class RepeatOp(CirhOp):
    """Every element along `axis` `repeats` times, one copy after the other, as `numpy.repeat`."""

    name = "cirh.Repeat"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
    x = operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    repeats_attr = prop_def(INT, prop_name="repeats")
    axis = IntParameter("axis")
    repeats = IntParameter("repeats")

    def __init__(self, x: Value, repeats: int, axis: int) -> None:
        source = operand_type(x)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        result = self.infer(source, repeats, axis)
        super().__init__([x], [result], {"axis": int_attr(axis), "repeats": int_attr(repeats)})

    @classmethod
    def infer(cls, x: Tensor, repeats: int, axis: int) -> Tensor:
        """Result type: x with `repeats` times the size along `axis`."""
        shape = x.get_shape()
        cls.require_axis(axis, len(shape))
        if repeats < 0:
            cls.fail(f"repeats is {repeats}, expected 0 or more")
        return tensor_type([*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]], x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.repeats, self.axis),)


@irdl_op_definition
class ConditionalArangeOp(CirhOp):
    """`start`, `start + 1` ... in the positions along the last dimension where the condition holds.

    The others have `fill`: the positions of the tokens of a padded sequence.
    """

    name = "cirh.ConditionalArange"
    TRAITS: ClassVar[OpTraits] = mixes()
    condition = operand_def()
    result = result_def()
    start_attr = prop_def(INT, prop_name="start")
    fill_attr = prop_def(INT, prop_name="fill")
    start = IntParameter("start")
    fill = IntParameter("fill")

    def __init__(self, condition: Value, start: int = 0, fill: int = 0) -> None:
        result = self.infer(operand_type(condition), start, fill)
        super().__init__([condition], [result], {"start": int_attr(start), "fill": int_attr(fill)})

    @classmethod
    def infer(cls, condition: Tensor, start: int, fill: int) -> Tensor:
        """Result type: i32 of the shape of the condition."""
        cls.require_dtype("condition", condition, BOOL)
        if not condition.get_shape():
            cls.fail(f"condition has type {condition}, expected rank 1 or more")
        if not -(2**31) <= fill < 2**31 or not -(2**31) <= start < 2**31 - condition.get_shape()[-1]:
            cls.fail(
                f"start is {start} and fill {fill}, expected 32-bit integers, and so the last number of a row"
            )
        return tensor_type(condition.get_shape(), "int32")

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.condition), self.start, self.fill),)


@irdl_op_definition
class GatherOp(CirhOp):
    """Slices of x along `axis` picked by integer indices, as `tf.gather`; indices must be in range."""

    name = "cirh.Gather"
    TRAITS: ClassVar[OpTraits] = moves(Elements.LOOKED_UP)
    x = operand_def()
    indices = operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    axis = IntParameter("axis")

    def __init__(self, x: Value, indices: Value, axis: int = 0) -> None:
        source = operand_type(x)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        super().__init__(
            [x, indices], [self.infer(source, operand_type(indices), axis)], {"axis": int_attr(axis)}
        )

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Result type: the shape of x with dimension `axis` replaced by the shape of indices."""
        cls.require_dtype("indices", indices, INTEGERS)
        shape = x.get_shape()
        cls.require_axis(axis, len(shape))
        result = tensor_type([*shape[:axis], *indices.get_shape(), *shape[axis + 1 :]], x.element_type)
        if not shape[axis] and element_count(result):
            cls.fail(f"x has type {x}, expected elements to pick along dimension {axis}")
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.indices), self.axis),)


@irdl_op_definition
class OneHotOp(CirhOp):
    """`on` where the position along the new axis is the index, else `off`; out of range gives `off`."""

    name = "cirh.OneHot"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
    indices = operand_def()
    on = operand_def()
    off = operand_def()
    result = result_def()
    depth_attr = prop_def(INT, prop_name="depth")
    axis_attr = prop_def(INT, prop_name="axis")
    depth = IntParameter("depth")
    axis = IntParameter("axis")

    def __init__(self, indices: Value, on: Value, off: Value, depth: int, axis: int = -1) -> None:
        source = operand_type(indices)
        axis = axis + len(source.get_shape()) + 1 if axis < 0 else axis
        result = self.infer(source, operand_type(on), operand_type(off), depth, axis)
        super().__init__([indices, on, off], [result], {"depth": int_attr(depth), "axis": int_attr(axis)})

    @classmethod
    def infer(cls, indices: Tensor, on: Tensor, off: Tensor, depth: int, axis: int) -> Tensor:
        """Result type: the shape of indices with `depth` inserted at `axis`, elements of `on`."""
        cls.require_dtype("indices", indices, INTEGERS)
        cls.require_dtype("on", on, ANY)
        cls.require_scalar("on", on)
        cls.require_scalar("off", off, on)
        shape = indices.get_shape()
        cls.require_axis(axis, len(shape) + 1)
        if depth < 0:
            cls.fail(f"depth is {depth}, expected 0 or more")
        return tensor_type([*shape[:axis], depth, *shape[axis:]], on.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        on, off = tensor_of(self.on), tensor_of(self.off)
        return (self.infer(tensor_of(self.indices), on, off, self.depth, self.axis),)


@irdl_op_definition
class SliceOp(CirhOp):
    """`x[start:limit:stride]` in every dimension; strides are positive."""

    name = "cirh.Slice"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
    x = operand_def()
    result = result_def()
    start_indices_attr = prop_def(INTS, prop_name="start_indices")
    limit_indices_attr = prop_def(INTS, prop_name="limit_indices")
    strides_attr = prop_def(INTS, prop_name="strides")
    start_indices = IntsParameter("start_indices")
    limit_indices = IntsParameter("limit_indices")
    strides = IntsParameter("strides")

    def __init__(
        self,
        x: Value,
        start_indices: Sequence[int],
        limit_indices: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> None:
        strides = [1] * len(start_indices) if strides is None else strides
        result = self.infer(operand_type(x), start_indices, limit_indices, strides)
        super().__init__(
            [x],
            [result],
            {
                "start_indices": ints_attr(start_indices),
                "limit_indices": ints_attr(limit_indices),
                "strides": ints_attr(strides),
            },
        )

    @classmethod
    def infer(
        cls, x: Tensor, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int]
    ) -> Tensor:
        """Result type: `ceil((limit - start) / stride)` in every dimension."""
        shape = x.get_shape()
        if {len(start_indices), len(limit_indices), len(strides)} != {len(shape)}:
            cls.fail(
                f"got {len(start_indices)} start_indices, {len(limit_indices)} limit_indices and "
                f"{len(strides)} strides, expected {len(shape)} of each for {x}"
            )
        sizes = []
        for dim, (size, start, limit, stride) in enumerate(
            zip(shape, start_indices, limit_indices, strides, strict=True)
        ):
            if not 0 <= start <= limit <= size or stride < 1:
                cls.fail(
                    f"dimension {dim} has start {start}, limit {limit}, stride {stride}; "
                    f"expected 0 <= start <= limit <= {size} and a stride of 1 or more"
                )
            sizes.append(-(-(limit - start) // stride))
        return tensor_type(sizes, x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.start_indices, self.limit_indices, self.strides),)


# The index of no row: the largest that the device has, where int64 is computed as int32.
PADDING_INDEX = 2**31 - 1

INDEX_DTYPES = frozenset({"int32", "int64"})
SCATTER_KINDS = ("SET", "ADD", "MUL", "MAX", "MIN")


@irdl_op_definition
class UniqueOp(CirhOp):
    """The different values of x in order of first appearance, and for each element the place of its value.

    As `tf.unique`, but that `values` is as long as x: the places after the last value hold `PADDING_INDEX`
    (2147483647), which is out of range of every table. `x[i] == values[idx[i]]` holds for every i, and idx
    is exact: no element of it is a place of the padding (unless x itself has that value).
    """

    name = "cirh.Unique"
    TRAITS: ClassVar[OpTraits] = mixes(
        Work(stream=1, simple=1), samples=Samples.NONE, ends_update=True, order=Order.SORTS
    )
    x = operand_def()
    values = result_def()
    idx = result_def()

    def __init__(self, x: Value, dtype: DTypeLike | ElementType = "int32") -> None:
        """`dtype` is that of idx."""
        super().__init__([x], self.infer(operand_type(x), dtype))

    @classmethod
    def infer(cls, x: Tensor, dtype: DTypeLike | ElementType) -> tuple[Tensor, Tensor]:
        """Result types: the type of x, and integers of its shape."""
        cls.require_dtype("x", x, INDEX_DTYPES)
        if len(x.get_shape()) != 1:
            cls.fail(f"x has type {x}, expected rank 1")
        idx = tensor_type(x.get_shape(), dtype)
        cls.require_dtype("idx", idx, INDEX_DTYPES)
        return x, idx

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x), tensor_of(self.idx).element_type)


@irdl_op_definition
class ScatterOp(CirhOp):
    """x with the rows that indices name replaced by the rows of updates (SET), or combined with them.

    ADD and MUL take sum and product, MAX and MIN the larger and the smaller of each element. Rows with an
    index out of range are dropped: negative ones, and the padding of `Unique`. Rows named twice count twice;
    with SET one of them stands, and which one is open.
    """

    name = "cirh.Scatter"
    TRAITS: ClassVar[OpTraits] = mixes(STREAM, samples=Samples.NONE, order=Order.SCATTERS)
    x = operand_def()
    indices = operand_def()
    updates = operand_def()
    result = result_def()
    reduce_kind_attr = prop_def(StringAttr, prop_name="reduce_kind")
    reduce_kind = TextParameter("reduce_kind")

    def __init__(self, x: Value, indices: Value, updates: Value, reduce_kind: str) -> None:
        result = self.infer(operand_type(x), operand_type(indices), operand_type(updates), reduce_kind)
        super().__init__([x, indices, updates], [result], {"reduce_kind": text_attr(reduce_kind)})

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, updates: Tensor, reduce_kind: str) -> Tensor:
        """Result type: the type of x."""
        if reduce_kind not in SCATTER_KINDS:
            cls.fail(f"reduce_kind is {reduce_kind!r}, expected one of {', '.join(SCATTER_KINDS)}")
        cls.require_dtype("x", x, ANY if reduce_kind == "SET" else NUMBERS)
        cls.require_dtype("indices", indices, INTEGERS)
        if not x.get_shape():
            cls.fail(f"x has type {x}, expected rank 1 or more")
        if len(indices.get_shape()) != 1:
            cls.fail(f"indices has type {indices}, expected rank 1")
        rows = tensor_type([*indices.get_shape(), *x.get_shape()[1:]], x.element_type)
        cls.require_same("updates", updates, "a row of x for each of indices", rows)
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        indices, updates = tensor_of(self.indices), tensor_of(self.updates)
        return (self.infer(tensor_of(self.x), indices, updates, self.reduce_kind),)


@irdl_op_definition
class ScatterNdOp(CirhOp):
    """Rows of updates combined into a zero tensor at the rows that indices name.

    Rows with an index out of range are dropped, as `UnsortedSegmentSum` does. The gradient of an embedding.
    """

    name = "cirh.ScatterNd"
    TRAITS: ClassVar[OpTraits] = mixes(STREAM, samples=Samples.SUMMED, ends_update=True, order=Order.SCATTERS)
    indices = operand_def()
    updates = operand_def()
    result = result_def()
    reduce_kind_attr = prop_def(StringAttr, prop_name="reduce_kind")
    reduce_kind = TextParameter("reduce_kind")

    def __init__(
        self, indices: Value, updates: Value, shape: Sequence[int], reduce_kind: str = "ADD"
    ) -> None:
        result = self.infer(operand_type(indices), operand_type(updates), shape, reduce_kind)
        super().__init__([indices, updates], [result], {"reduce_kind": text_attr(reduce_kind)})

    @classmethod
    def infer(cls, indices: Tensor, updates: Tensor, shape: Sequence[int], reduce_kind: str) -> Tensor:
        """Result type: `shape`, whose dimensions after the first are those of updates."""
        cls.require_dtype("indices", indices, INTEGERS)
        cls.require_dtype("updates", updates, NUMBERS)
        if reduce_kind != "ADD":
            cls.fail(f"reduce_kind is {reduce_kind!r}, expected 'ADD'")
        rows = indices.get_shape()
        if len(rows) != 1 or updates.get_shape()[:1] != rows:
            cls.fail(f"indices has type {indices} and updates {updates}, expected [N] and [N, ...]")
        if not shape or tuple(shape[1:]) != updates.get_shape()[1:]:
            cls.fail(f"result shape is {tuple(shape)}, expected (rows, *{updates.get_shape()[1:]})")
        return tensor_type(shape, updates.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        shape = tensor_of(self.result).get_shape()
        return (self.infer(tensor_of(self.indices), tensor_of(self.updates), shape, self.reduce_kind),)
