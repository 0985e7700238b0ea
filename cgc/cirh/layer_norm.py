"""Normalization of each sample by its own moments: over the last dimension, or over groups of channels."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    FLOAT,
    INT,
    CirhOp,
    FloatParameter,
    IntParameter,
    Value,
    float_attr,
    int_attr,
    operand_type,
)
from cgc.cirh.facts import Facts, Fp16, Samples, mixes
from cgc.cirh.types import FLOATS, Tensor, tensor_of, tensor_type


class SampleNormOp(CirhOp):
    """Base of the forward ops: the types of their operands and results."""

    x = operand_def()
    scale = operand_def()
    offset = operand_def()
    y = result_def()
    mean = result_def()
    rstd = result_def()
    epsilon_attr = prop_def(FLOAT, prop_name="epsilon")
    epsilon = FloatParameter("epsilon")

    def row_reductions(self) -> int:
        """Mean and variance."""
        return 2


class SampleNormGradOp(CirhOp):
    """Base of the gradients by x, scale and offset."""

    grad = operand_def()
    x = operand_def()
    scale = operand_def()
    mean = operand_def()
    rstd = operand_def()
    x_backprop = result_def()
    scale_backprop = result_def()
    offset_backprop = result_def()

    def row_reductions(self) -> int:
        """The means of the gradient, and of it times the normalized elements."""
        return 2


def _vector_type(op: type[CirhOp], x: Tensor, scale: Tensor) -> Tensor:
    """The type of scale, checked to be a float vector over the last dimension of x."""
    op.require_dtype("x", x, FLOATS)
    op.require_dtype("scale", scale, FLOATS)
    if not x.get_shape():
        op.fail(f"x has type {x}, expected rank 1 or more, channels last")
    expected = tensor_type(x.get_shape()[-1:], scale.element_type)
    op.require_same("scale", scale, "the last dimension of x", expected)
    return expected


def row_moments(x: Tensor) -> Tensor:
    """The type of the moments of x over its last dimension, which stays with size 1; always float32."""
    return tensor_type([*x.get_shape()[:-1], 1], "float32")


@irdl_op_definition
class LayerNormOp(SampleNormOp):
    """`(x - mean) * rstd * scale + offset`, where mean and rstd are those of x over its last dimension.

    Results: y of the type of x; mean and `rstd = 1 / sqrt(variance + epsilon)`, float32, `[..., 1]`.
    """

    name = "cirh.LayerNorm"
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.FOLLOWS, activations=1, ends_update=True)

    def __init__(self, x: Value, scale: Value, offset: Value, epsilon: float = 1e-3) -> None:
        operands = [x, scale, offset]
        types = self.infer(*map(operand_type, operands))
        CirhOp.__init__(self, operands, types, {"epsilon": float_attr(epsilon)})

    @classmethod
    def infer(cls, x: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, ...]:
        """Result types: the type of x, and twice that of its moments."""
        vector = _vector_type(cls, x, scale)
        cls.require_same("offset", offset, "scale", vector)
        return x, row_moments(x), row_moments(x)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(*map(tensor_of, self.operands))


@irdl_op_definition
class LayerNormGradOp(SampleNormGradOp):
    """Gradients of `LayerNorm` by x, scale and offset, from the moments that it saved."""

    name = "cirh.LayerNormGrad"
    FACTS: ClassVar[Facts] = mixes(
        fp16=Fp16.FOLLOWS, samples=Samples.FIRST, activations=2, ends_update=True, gradient_of=LayerNormOp
    )

    def __init__(self, grad: Value, x: Value, scale: Value, mean: Value, rstd: Value) -> None:
        operands = [grad, x, scale, mean, rstd]
        CirhOp.__init__(self, operands, self.infer(*map(operand_type, operands)))

    @classmethod
    def infer(cls, grad: Tensor, x: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
        """Result types: the type of x, and twice that of scale."""
        vector = _vector_type(cls, x, scale)
        cls.require_same("grad", grad, "x", x)
        cls.require_same("mean", mean, "the moments of x", row_moments(x))
        cls.require_same("rstd", rstd, "the moments of x", row_moments(x))
        return x, vector, vector

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(*map(tensor_of, self.operands))


def group_moments(op: type[CirhOp], x: Tensor, num_groups: int) -> Tensor:
    """The type of the moments of each group of channels: float32, `[N, num_groups]`."""
    shape = x.get_shape()
    if len(shape) < 2:
        op.fail(f"x has type {x}, expected rank 2 or more, channels last")
    if num_groups < 1 or shape[-1] % num_groups:
        op.fail(f"num_groups is {num_groups}, expected a divisor of {shape[-1]}, the channels of {x}")
    return tensor_type([shape[0], num_groups], "float32")


@irdl_op_definition
class GroupNormOp(SampleNormOp):
    """`LayerNorm` over all places of a sample and a group of its channels; x is `[N, ..., C]`.

    Channel c belongs to group `c // (C / num_groups)`. Results: y of the type of x; mean and
    `rstd = 1 / sqrt(variance + epsilon)` of each group, float32, `[N, num_groups]`.
    """

    name = "cirh.GroupNorm"
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.FOLLOWS, activations=1, ends_update=True)
    num_groups_attr = prop_def(INT, prop_name="num_groups")
    num_groups = IntParameter("num_groups")

    def __init__(self, x: Value, scale: Value, offset: Value, num_groups: int, epsilon: float = 1e-3) -> None:
        operands = [x, scale, offset]
        types = self.infer(*map(operand_type, operands), num_groups=num_groups)
        CirhOp.__init__(
            self, operands, types, {"epsilon": float_attr(epsilon), "num_groups": int_attr(num_groups)}
        )

    @classmethod
    def infer(cls, x: Tensor, scale: Tensor, offset: Tensor, *, num_groups: int) -> tuple[Tensor, ...]:
        """Result types: the type of x, and twice that of its moments."""
        vector = _vector_type(cls, x, scale)
        cls.require_same("offset", offset, "scale", vector)
        moments = group_moments(cls, x, num_groups)
        return x, moments, moments

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(*map(tensor_of, self.operands), num_groups=self.num_groups)


@irdl_op_definition
class GroupNormGradOp(SampleNormGradOp):
    """Gradients of `GroupNorm` by x, scale and offset, from the moments that it saved."""

    name = "cirh.GroupNormGrad"
    FACTS: ClassVar[Facts] = mixes(
        fp16=Fp16.FOLLOWS, samples=Samples.FIRST, activations=2, ends_update=True, gradient_of=GroupNormOp
    )
    num_groups_attr = prop_def(INT, prop_name="num_groups")
    num_groups = IntParameter("num_groups")

    def __init__(
        self, grad: Value, x: Value, scale: Value, mean: Value, rstd: Value, num_groups: int
    ) -> None:
        operands = [grad, x, scale, mean, rstd]
        types = self.infer(*map(operand_type, operands), num_groups=num_groups)
        CirhOp.__init__(self, operands, types, {"num_groups": int_attr(num_groups)})

    @classmethod
    def infer(
        cls, grad: Tensor, x: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor, *, num_groups: int
    ) -> tuple[Tensor, ...]:
        """Result types: the type of x, and twice that of scale."""
        vector = _vector_type(cls, x, scale)
        moments = group_moments(cls, x, num_groups)
        cls.require_same("grad", grad, "x", x)
        cls.require_same("mean", mean, "the moments of x", moments)
        cls.require_same("rstd", rstd, "the moments of x", moments)
        return x, vector, vector

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(*map(tensor_of, self.operands), num_groups=self.num_groups)
