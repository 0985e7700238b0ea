"""Convolution and its two gradients, one op with a direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
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
from cgc.cirh.facts import Facts, Fp16, mixes
from cgc.cirh.types import FLOATS, Tensor, tensor_of, tensor_type
from cgc.cirh.window import data_format_of, require_space, require_window, window_counts

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
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.STARTS, product=True, ends_update=True)
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
        """Attributes of the window are 1, 0 and 1 by default.

        `shape` is that of the result, which operands alone do not say in the two backward directions.
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
        """Both, unless it is the gradient of the kernel, which adds up over samples."""
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
