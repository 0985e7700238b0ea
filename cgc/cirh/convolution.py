"""Convolution and pooling over images and volumes, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue
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
from cgc.cirh.traits import Fp16, OpTraits, Work, mixes
from cgc.cirh.types import FLOATS, Tensor, element_count, tensor_of, tensor_type

NHWC = "NHWC"  # the only order of dimensions of images: batch, height, width, channels

NDHWC = "NDHWC"  # the only order of dimensions of volumes: batch, depth, height, width, channels

_NUMBERS = {2: "two", 3: "three"}
_DIMENSIONS = {2: "height and width", 3: "depth, height and width"}
_SIDES = {2: "top, bottom, left, right", 3: "front, back, top, bottom, left, right"}


def data_format_of(tensor: Tensor) -> str:
    """Return NHWC for an image, NDHWC for a volume."""
    return NDHWC if len(tensor.get_shape()) == 5 else NHWC


def require_window(
    op: type[CirhOp],
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] | None = None,
    dimensions: int = 2,
) -> None:
    """Check the attributes of a window: a size of each dimension of space, and two paddings of each."""
    for what, values in (("window", ksize), ("stride", strides), ("dilation", dilation)):
        if values is not None and (len(values) != dimensions or any(value < 1 for value in values)):
            op.fail(
                f"the {what} is {tuple(values)}, expected {_NUMBERS[dimensions]} positive sizes, "
                f"of {_DIMENSIONS[dimensions]}"
            )
    if len(padding) != 2 * dimensions or any(value < 0 for value in padding):
        op.fail(f"padding is {tuple(padding)}, expected {_SIDES[dimensions]}, 0 or more each")


def require_space(op: type[CirhOp], what: str, tensor: Tensor) -> int:
    """Check for rank 4 (images) or 5 (volumes); returns the dimensions of space."""
    rank = len(tensor.get_shape())
    if rank not in (4, 5):
        op.fail(
            f"{what} has type {tensor}, expected rank 4: [batch, height, width, channels], "
            "or 5, with depth before height"
        )
    return rank - 2


def window_counts(
    op: type[CirhOp],
    size: Sequence[int],
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the number of windows along each dimension of space; an error if none fits."""
    steps = (1,) * len(size) if dilation is None else dilation
    spans = [(count - 1) * step + 1 for count, step in zip(ksize, steps, strict=True)]
    padded = [
        length + low + high for length, low, high in zip(size, padding[::2], padding[1::2], strict=True)
    ]
    if any(span > length for span, length in zip(spans, padded, strict=True)):
        op.fail(
            f"a window of {' x '.join(map(str, spans))} does not fit into {' x '.join(map(str, padded))}, "
            f"the padded {_DIMENSIONS[len(size)]}"
        )
    return tuple(
        (length - span) // stride + 1 for length, span, stride in zip(padded, spans, strides, strict=True)
    )


PASS_DIRECTIONS = ("FWD", "BWD_INPUT", "BWD_KERNEL")


@irdl_op_definition
class ConvolutionOp(CirhOp):
    """Convolution in two or three dimensions, or its gradient by the input or by the kernel.

    FWD: x `[N, H, W, C]` and kernel `[h, w, C / groups, D]` give y `[N, H', W', D]`, where output channels
    are in as many groups as input channels. BWD_INPUT: the gradient of y and the kernel give the gradient of
    x. BWD_KERNEL: x and the gradient of y give the gradient of the kernel. Attributes are those of the
    forward convolution in all three; padding is top, bottom, left, right. Volumes have the depth before the
    height: x `[N, D, H, W, C]`, kernel `[d, h, w, C / groups, D]`, padding front, back, top and so on.
    """

    name = "cirh.Convolution"
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.STARTS, product=True, ends_update=True)
    lhs = operand_def()
    rhs = operand_def()
    result = result_def()
    conv_pass_direction_attr = prop_def(StringAttr, prop_name="conv_pass_direction")
    data_format_attr = prop_def(StringAttr, prop_name="data_format")
    dilation_attr = prop_def(INTS, prop_name="dilation")
    groups_attr = prop_def(INT, prop_name="groups")
    padding_attr = prop_def(INTS, prop_name="padding")
    stride_attr = prop_def(INTS, prop_name="stride")
    conv_pass_direction = TextParameter("conv_pass_direction")
    data_format = TextParameter("data_format")
    dilation = IntsParameter("dilation")
    groups = IntParameter("groups")
    padding = IntsParameter("padding")
    stride = IntsParameter("stride")

    def __init__(
        self,
        lhs: Value,
        rhs: Value,
        stride: Sequence[int] | None = None,
        padding: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        groups: int = 1,
        conv_pass_direction: str = "FWD",
        shape: Sequence[int] | None = None,
    ) -> None:
        """Create a convolution; strides, padding and dilation are 1, 0 and 1 by default.

        `shape` is that of the result, which operands do not determine in the two backward directions.
        """
        left, right = operand_type(lhs), operand_type(rhs)
        ones = (1,) * max(0, len(left.get_shape()) - 2)
        stride, dilation = stride or ones, dilation or ones
        padding = (0,) * 2 * len(ones) if padding is None else padding
        properties = {
            "conv_pass_direction": text_attr(conv_pass_direction),
            "data_format": text_attr(data_format_of(left)),
            "dilation": ints_attr(dilation),
            "groups": int_attr(groups),
            "padding": ints_attr(padding),
            "stride": ints_attr(stride),
        }
        if conv_pass_direction == "FWD":
            result = self.infer(left, right, stride, padding, dilation, groups)
        else:
            result = self.infer_gradient(
                left, right, stride, padding, dilation, groups, conv_pass_direction, shape or ()
            )
        super().__init__([lhs, rhs], [result], properties)

    @classmethod
    def infer(
        cls,
        x: Tensor,
        kernel: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Tensor:
        """Result type of the forward direction."""
        cls.require_dtype("x", x, FLOATS)
        dimensions = require_space(cls, "x", x)
        sizes = kernel.get_shape()
        rank = dimensions + 2
        if len(sizes) != rank or kernel.element_type != x.element_type:
            cls.fail(f"the kernel has type {kernel}, expected rank {rank} and element type {x.element_type}")
        *window, inputs, outputs = sizes
        require_window(cls, window, stride, padding, dilation, dimensions)
        batch, *space, channels = x.get_shape()
        if groups < 1 or inputs * groups != channels or outputs % groups:
            names = "h, w" if dimensions == 2 else "d, h, w"
            cls.fail(
                f"the kernel has type {kernel} and groups is {groups}, expected "
                f"[{names}, {channels} / groups, multiple of groups] for x of type {x}"
            )
        counts = window_counts(cls, space, window, stride, padding, dilation)
        return tensor_type([batch, *counts, outputs], x.element_type)

    @classmethod
    def infer_gradient(
        cls,
        lhs: Tensor,
        rhs: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        direction: str,
        shape: Sequence[int],
    ) -> Tensor:
        """Result type of a backward direction: `shape`, if the forward one of it has the gradient's type."""
        if direction not in PASS_DIRECTIONS:
            cls.fail(f"conv_pass_direction is {direction!r}, expected one of {', '.join(PASS_DIRECTIONS)}")
        cls.require_dtype("lhs", lhs, FLOATS)
        result = tensor_type(shape, lhs.element_type)
        x, kernel, grad = (result, rhs, lhs) if direction == "BWD_INPUT" else (lhs, result, rhs)
        expected = cls.infer(x, kernel, stride, padding, dilation, groups)
        cls.require_same("the gradient", grad, "the forward convolution", expected)
        return result

    def sample_operands(self) -> Sequence[SSAValue]:
        """Return both, unless it is the gradient of the kernel, which adds up over samples."""
        return () if self.conv_pass_direction == "BWD_KERNEL" else self.operands

    def _infer_results(self) -> tuple[Tensor, ...]:
        left, right = tensor_of(self.lhs), tensor_of(self.rhs)
        if self.data_format != data_format_of(left):
            self.fail(f"data_format is {self.data_format!r}, expected {data_format_of(left)!r}")
        window = self.stride, self.padding, self.dilation, self.groups
        if self.conv_pass_direction == "FWD":
            return (self.infer(left, right, *window),)
        shape = tensor_of(self.result).get_shape()
        return (self.infer_gradient(left, right, *window, self.conv_pass_direction, shape),)


POOL_TYPES = ("MAX", "AVG")


def no_padding(ksize: Sequence[int]) -> tuple[int, ...]:
    """Return 0 for both sides of each dimension of a window."""
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
        """Return the type of x `[N, H, W, C]` after pooling, `[N, H', W', C]`; also of `[N, D, H, W, C]`."""
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
        """Return the attributes of a window that slides over x."""
        return {
            "data_format": text_attr(data_format_of(x)),
            "ksize": ints_attr(ksize),
            "padding": ints_attr(padding),
            "strides": ints_attr(strides),
        }

    def worked_elements(self) -> int:
        """Return the elements of all windows: of the result forward, of the last operand backward."""
        forward = self.TRAITS.gradient_of is None
        pooled = self.results[0] if forward else self.operands[-1]
        return element_count(tensor_of(pooled)) * math.prod(self.ksize)

    def verify_(self) -> None:
        """Check the data format, then the types."""
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
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.FOLLOWS)
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
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=2), fp16=Fp16.FOLLOWS, gradient_of=PoolOp)
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
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.FOLLOWS, gradient_of=PoolOp)
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
        """Create the gradient; `shape` is that of the operand of the pooling."""
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
