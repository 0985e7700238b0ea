"""Ops on rows of a table that are named by number: the sparse update of an embedding.

How many different rows a batch names depends on its data, but shapes are static. So as many rows are kept as
there are names, and those beyond the different ones are padding: their index is `PADDING_INDEX`, which no
tensor has a row for. What is computed for such rows has no meaning, and `Scatter` drops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from numpy.typing import DTypeLike
from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    CirhOp,
    TextParameter,
    Value,
    operand_type,
    text_attr,
)
from cgc.cirh.facts import STREAM, Facts, Order, Samples, Work, mixes
from cgc.cirh.types import ANY, INTEGERS, NUMBERS, ElementType, Tensor, tensor_of, tensor_type

PADDING_INDEX = 2**31 - 1
"""The index of no row: the largest that the device has, where int64 is computed as int32."""

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
    FACTS: ClassVar[Facts] = mixes(
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
    FACTS: ClassVar[Facts] = mixes(STREAM, samples=Samples.NONE, order=Order.SCATTERS)
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
    FACTS: ClassVar[Facts] = mixes(STREAM, samples=Samples.SUMMED, ends_update=True, order=Order.SCATTERS)
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
