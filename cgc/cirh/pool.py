"""Pooling over windows of height and width, or of depth as well, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    INTS,
    CirhOp,
    IntsParameter,
    TextParameter,
    Value,
    ints_attr,
    operand_type,
    text_attr,
)
from cgc.cirh.facts import Facts, Fp16, Work, mixes
from cgc.cirh.types import FLOATS, Tensor, element_count, tensor_of, tensor_type
from cgc.cirh.window import data_format_of, require_space, require_window, window_counts

POOL_TYPES = ("MAX", "AVG")


def no_padding(ksize: Sequence[int]) -> tuple[int, ...]:
    """0 on both sides of each dimension of a window."""
    return (0,) * 2 * len(ksize)


class WindowOp(CirhOp):
    """Base of the ops with windows: their attributes, and the type of the pooled tensor."""

    data_format_attr = prop_def(StringAttr, prop_name="data_format")
    ksize_attr = prop_def(INTS, prop_name="ksize")
    padding_attr = prop_def(INTS, prop_name="padding")
    strides_attr = prop_def(INTS, prop_name="strides")
    data_format = TextParameter("data_format")
    ksize = IntsParameter("ksize")
    padding = IntsParameter("padding")
    strides = IntsParameter("strides")

    @classmethod
    def pooled(
        cls, x: Tensor, ksize: Sequence[int], strides: Sequence[int], padding: Sequence[int]
    ) -> Tensor:
        """The type of x `[N, H, W, C]` after pooling: `[N, H', W', C]`; of `[N, D, H, W, C]` likewise."""
        cls.require_dtype("x", x, FLOATS)
        dimensions = require_space(cls, "x", x)
        require_window(cls, ksize, strides, padding, dimensions=dimensions)
        batch, *space, channels = x.get_shape()
        # a window of padding alone would have no largest element and no mean
        if any(max(sides) >= k for *sides, k in zip(padding[::2], padding[1::2], ksize, strict=True)):
            cls.fail(f"padding is {tuple(padding)}, expected less than the window {tuple(ksize)}")
        counts = window_counts(cls, space, ksize, strides, padding)
        return tensor_type([batch, *counts, channels], x.element_type)

    @staticmethod
    def window_properties(
        x: Tensor, ksize: Sequence[int], strides: Sequence[int], padding: Sequence[int]
    ) -> dict[str, Attribute]:
        """The attributes of a window that slides over x or what has its rank."""
        return {
            "data_format": text_attr(data_format_of(x)),
            "ksize": ints_attr(ksize),
            "padding": ints_attr(padding),
            "strides": ints_attr(strides),
        }

    def worked_elements(self) -> int:
        """The elements of all windows: of the result forward, of the last operand backward."""
        forward = self.FACTS.gradient_of is None
        pooled = self.results[0] if forward else self.operands[-1]
        return element_count(tensor_of(pooled)) * math.prod(self.ksize)

    def verify_(self) -> None:
        """Checks the data format, then the types."""
        expected = data_format_of(tensor_of(self.operands[0]))
        if self.data_format != expected:
            self.fail(f"data_format is {self.data_format!r}, expected {expected!r}")
        super().verify_()


@irdl_op_definition
class PoolOp(WindowOp):
    """Largest element (MAX) or mean (AVG) of each window.

    Padding is top, bottom, left, right (of volumes front and back first); it is neither compared nor
    counted.
    """

    name = "cirh.Pool"
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.FOLLOWS)
    x = operand_def()
    result = result_def()
    pool_type_attr = prop_def(StringAttr, prop_name="pool_type")
    pool_type = TextParameter("pool_type")

    def __init__(
        self,
        x: Value,
        pool_type: str,
        ksize: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int] | None = None,
    ) -> None:
        padding = no_padding(ksize) if padding is None else padding
        result = self.infer(operand_type(x), pool_type, tuple(ksize), strides, padding)
        properties = self.window_properties(operand_type(x), ksize, strides, padding)
        super().__init__([x], [result], {**properties, "pool_type": text_attr(pool_type)})

    @classmethod
    def infer(
        cls,
        x: Tensor,
        pool_type: str,
        ksize: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
    ) -> Tensor:
        """Result type: one element per window and channel."""
        if pool_type not in POOL_TYPES:
            cls.fail(f"pool_type is {pool_type!r}, expected one of {', '.join(POOL_TYPES)}")
        return cls.pooled(x, ksize, strides, padding)

    def _infer_results(self) -> tuple[Tensor, ...]:
        x = tensor_of(self.x)
        return (self.infer(x, self.pool_type, self.ksize, self.strides, self.padding),)


@irdl_op_definition
class MaxPoolGradOp(WindowOp):
    """Gradient of MAX pooling of x: each grad goes to the first of the largest elements of its window.

    Of volumes to all of the largest: TensorFlow has it so on CPUs.
    """

    name = "cirh.MaxPoolGrad"
    FACTS: ClassVar[Facts] = mixes(Work(simple=2), fp16=Fp16.FOLLOWS, gradient_of=PoolOp)
    x = operand_def()
    grad = operand_def()
    result = result_def()

    def __init__(
        self,
        x: Value,
        grad: Value,
        ksize: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int] | None = None,
    ) -> None:
        padding = no_padding(ksize) if padding is None else padding
        result = self.infer(operand_type(x), operand_type(grad), tuple(ksize), strides, padding)
        properties = self.window_properties(operand_type(x), ksize, strides, padding)
        super().__init__([x, grad], [result], properties)

    @classmethod
    def infer(
        cls, x: Tensor, grad: Tensor, ksize: Sequence[int], strides: Sequence[int], padding: Sequence[int]
    ) -> Tensor:
        """Result type: the type of x."""
        cls.require_same("grad", grad, "pooled x", cls.pooled(x, ksize, strides, padding))
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        x, grad = tensor_of(self.x), tensor_of(self.grad)
        return (self.infer(x, grad, self.ksize, self.strides, self.padding),)


@irdl_op_definition
class AvgPoolGradOp(WindowOp):
    """Gradient of AVG pooling: each grad is spread evenly over the elements of its window."""

    name = "cirh.AvgPoolGrad"
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.FOLLOWS, gradient_of=PoolOp)
    grad = operand_def()
    result = result_def()

    def __init__(
        self,
        grad: Value,
        shape: Sequence[int],
        ksize: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int] | None = None,
    ) -> None:
        """`shape` is that of what was pooled."""
        padding = no_padding(ksize) if padding is None else padding
        result = self.infer(operand_type(grad), shape, tuple(ksize), strides, padding)
        properties = self.window_properties(operand_type(grad), ksize, strides, padding)
        super().__init__([grad], [result], properties)

    @classmethod
    def infer(
        cls,
        grad: Tensor,
        shape: Sequence[int],
        ksize: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
    ) -> Tensor:
        """Result type: `shape`, with the element type of grad."""
        cls.require_dtype("grad", grad, FLOATS)
        result = tensor_type(shape, grad.element_type)
        cls.require_same("grad", grad, "the pooled result", cls.pooled(result, ksize, strides, padding))
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        grad, shape = tensor_of(self.grad), tensor_of(self.result).get_shape()
        return (self.infer(grad, shape, self.ksize, self.strides, self.padding),)
