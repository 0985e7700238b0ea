"""Convolution and its two gradients, one op with a direction."""

from __future__ import annotations

from collections.abc import Sequence

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
)
from cgc.cirh.types import FLOATS, Tensor, tensor_of, tensor_type
from cgc.cirh.window import NHWC, require_image, require_window, window_counts

DIRECTIONS = ("FWD", "BWD_INPUT", "BWD_KERNEL")


@irdl_op_definition
class ConvolutionOp(CirhOp):
    """Convolution in two dimensions, or its gradient by the input or by the kernel.

    FWD: x `[N, H, W, C]` and kernel `[h, w, C / groups, D]` give y `[N, H', W', D]`, where output channels
    are in as many groups as input channels. BWD_INPUT: the gradient of y and the kernel give the gradient of
    x. BWD_KERNEL: x and the gradient of y give the gradient of the kernel. Attributes are those of the
    forward convolution in all three; padding is top, bottom, left, right.
    """

    name = "cirh.Convolution"
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
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        conv_pass_direction: str = "FWD",
        shape: Sequence[int] | None = None,
    ) -> None:
        """`shape` is that of the result, which operands alone do not say in the two backward directions."""
        properties = {
            "conv_pass_direction": StringAttr(conv_pass_direction),
            "data_format": StringAttr(NHWC),
            "dilation": ints_attr(dilation),
            "groups": int_attr(groups),
            "padding": ints_attr(padding),
            "stride": ints_attr(stride),
        }
        left, right = operand_type(lhs), operand_type(rhs)
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
        require_image(cls, "x", x)
        sizes = kernel.get_shape()
        if len(sizes) != 4 or kernel.element_type != x.element_type:
            cls.fail(f"the kernel has type {kernel}, expected rank 4 and element type {x.element_type}")
        require_window(cls, sizes[:2], stride, padding, dilation)
        batch, height, width, channels = x.get_shape()
        if groups < 1 or sizes[2] * groups != channels or sizes[3] % groups:
            cls.fail(
                f"the kernel has type {kernel} and groups is {groups}, expected "
                f"[h, w, {channels} / groups, multiple of groups] for x of type {x}"
            )
        counts = window_counts(cls, (height, width), sizes[:2], stride, padding, dilation)
        return tensor_type([batch, *counts, sizes[3]], x.element_type)

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
        if direction not in DIRECTIONS:
            cls.fail(f"conv_pass_direction is {direction!r}, expected one of {', '.join(DIRECTIONS)}")
        cls.require_dtype("lhs", lhs, FLOATS)
        result = tensor_type(shape, lhs.element_type)
        x, kernel, grad = (result, rhs, lhs) if direction == "BWD_INPUT" else (lhs, result, rhs)
        expected = cls.infer(x, kernel, stride, padding, dilation, groups)
        cls.require_same("the gradient", grad, "the forward convolution", expected)
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        if self.data_format != NHWC:
            self.fail(f"data_format is {self.data_format!r}, expected {NHWC!r}")
        left, right = tensor_of(self.lhs), tensor_of(self.rhs)
        window = self.stride, self.padding, self.dilation, self.groups
        if self.conv_pass_direction == "FWD":
            return (self.infer(left, right, *window),)
        shape = tensor_of(self.result).get_shape()
        return (self.infer_gradient(left, right, *window, self.conv_pass_direction, shape),)
