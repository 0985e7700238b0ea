"""Batch, layer and group normalization, and their gradients."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    BOOLEAN,
    FLOAT,
    INT,
    BoolParameter,
    CirhOp,
    FloatParameter,
    IntParameter,
    TextParameter,
    Value,
    bool_attr,
    float_attr,
    int_attr,
    operand_type,
    text_attr,
)
from cgc.cirh.convolution import NHWC
from cgc.cirh.traits import Fp16, OpTraits, Samples, Work, mixes
from cgc.cirh.types import FLOATS, Tensor, tensor_of, tensor_type


class BatchNormOp(CirhOp):
    """Base of the two ops: the attributes that they share, and the check of their vectors."""

    data_format_attr = prop_def(StringAttr, prop_name="data_format")
    epsilon_attr = prop_def(FLOAT, prop_name="epsilon")
    is_training_attr = prop_def(BOOLEAN, prop_name="is_training")
    data_format = TextParameter("data_format")
    epsilon = FloatParameter("epsilon")
    is_training = BoolParameter("is_training")

    @classmethod
    def require_vectors(cls, x: Tensor, **vectors: Tensor) -> Tensor:
        """Check for one float vector type over the channels, the last dimension of x; returns it."""
        cls.require_dtype("x", x, FLOATS)
        if len(x.get_shape()) < 2:
            cls.fail(f"x has type {x}, expected rank 2 or more, channels last")
        scale = vectors["scale"]
        cls.require_dtype("scale", scale, FLOATS)
        expected = tensor_type(x.get_shape()[-1:], scale.element_type)
        for name, vector in vectors.items():
            cls.require_same(name, vector, "the channels of x", expected)
        return expected

    def row_reductions(self) -> int:
        """Return 2 sums over the batch in training, and 1 for the gradient outside of it."""
        return 2 if self.is_training else int(self.TRAITS.gradient_of is not None)

    def verify_(self) -> None:
        """Check the data format, then the types."""
        if self.data_format != NHWC:
            self.fail(f"data_format is {self.data_format!r}, expected {NHWC!r}, channels last")
        super().verify_()


@irdl_op_definition
class FusedBatchNormOp(BatchNormOp):
    """`(x - mean) / sqrt(variance + epsilon) * scale + offset` for each channel, the last dimension of x.

    In training mean and variance are those of the batch, else the operands. Results: y;
    batch_mean and batch_variance, in training the operands moved towards the moments of the batch by
    `exponential_avg_factor` (the variance there divided by count - 1), else the operands themselves;
    saved_mean and saved_variance, with which x was normalized.
    """

    name = "cirh.FusedBatchNorm"
    TRAITS: ClassVar[OpTraits] = mixes(
        Work(simple=5), fp16=Fp16.FOLLOWS, samples=Samples.FIRST, activations=1, ends_update=True
    )
    x = operand_def()
    scale = operand_def()
    offset = operand_def()
    mean = operand_def()
    variance = operand_def()
    y = result_def()
    batch_mean = result_def()
    batch_variance = result_def()
    saved_mean = result_def()
    saved_variance = result_def()
    exponential_avg_factor_attr = prop_def(FLOAT, prop_name="exponential_avg_factor")
    exponential_avg_factor = FloatParameter("exponential_avg_factor")

    def __init__(
        self,
        x: Value,
        scale: Value,
        offset: Value,
        mean: Value,
        variance: Value,
        epsilon: float = 1e-3,
        exponential_avg_factor: float = 1.0,
        is_training: bool = True,
    ) -> None:
        operands = [x, scale, offset, mean, variance]
        properties = {
            "data_format": text_attr(NHWC),
            "epsilon": float_attr(epsilon),
            "exponential_avg_factor": float_attr(exponential_avg_factor),
            "is_training": bool_attr(is_training),
        }
        super().__init__(operands, self.infer(*map(operand_type, operands)), properties)

    @classmethod
    def infer(
        cls, x: Tensor, scale: Tensor, offset: Tensor, mean: Tensor, variance: Tensor
    ) -> tuple[Tensor, ...]:
        """Result types: the type of x, and four times that of scale."""
        vector = cls.require_vectors(x, scale=scale, offset=offset, mean=mean, variance=variance)
        return (x, *[vector] * 4)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(*map(tensor_of, self.operands))


@irdl_op_definition
class FusedBatchNormGradOp(BatchNormOp):
    """Gradient of FusedBatchNorm by x, scale and offset, from the mean and the variance that it saved.

    In training mean and variance depend on x, and x_backprop counts that; else they are constants.
    """

    name = "cirh.FusedBatchNormGrad"
    TRAITS: ClassVar[OpTraits] = mixes(
        Work(simple=7),
        fp16=Fp16.FOLLOWS,
        samples=Samples.FIRST,
        activations=2,
        ends_update=True,
        gradient_of=FusedBatchNormOp,
    )
    grad = operand_def()
    x = operand_def()
    scale = operand_def()
    mean = operand_def()
    variance = operand_def()
    x_backprop = result_def()
    scale_backprop = result_def()
    offset_backprop = result_def()

    def __init__(
        self,
        grad: Value,
        x: Value,
        scale: Value,
        mean: Value,
        variance: Value,
        epsilon: float = 1e-3,
        is_training: bool = True,
    ) -> None:
        operands = [grad, x, scale, mean, variance]
        properties = {
            "data_format": text_attr(NHWC),
            "epsilon": float_attr(epsilon),
            "is_training": bool_attr(is_training),
        }
        super().__init__(operands, self.infer(*map(operand_type, operands)), properties)

    @classmethod
    def infer(
        cls, grad: Tensor, x: Tensor, scale: Tensor, mean: Tensor, variance: Tensor
    ) -> tuple[Tensor, ...]:
        """Result types: the type of x, and twice that of scale."""
        vector = cls.require_vectors(x, scale=scale, mean=mean, variance=variance)
        cls.require_same("grad", grad, "x", x)
        return x, vector, vector

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(*map(tensor_of, self.operands))


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
        """Return 2: mean and variance."""
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
        """Return 2: the means of the gradient, and of it times the normalized elements."""
        return 2


def _vector_type(op: type[CirhOp], x: Tensor, scale: Tensor) -> Tensor:
    """Return the type of scale, checked to be a float vector over the last dimension of x."""
    op.require_dtype("x", x, FLOATS)
    op.require_dtype("scale", scale, FLOATS)
    if not x.get_shape():
        op.fail(f"x has type {x}, expected rank 1 or more, channels last")
    expected = tensor_type(x.get_shape()[-1:], scale.element_type)
    op.require_same("scale", scale, "the last dimension of x", expected)
    return expected


def row_moments(x: Tensor) -> Tensor:
    """Return the type of the moments of x over its last dimension, of size 1; always float32."""
    return tensor_type([*x.get_shape()[:-1], 1], "float32")


@irdl_op_definition
class LayerNormOp(SampleNormOp):
    """`(x - mean) * rstd * scale + offset`, where mean and rstd are those of x over its last dimension.

    Results: y of the type of x; mean and `rstd = 1 / sqrt(variance + epsilon)`, float32, `[..., 1]`.
    """

    name = "cirh.LayerNorm"
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.FOLLOWS, activations=1, ends_update=True)

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
    TRAITS: ClassVar[OpTraits] = mixes(
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
    """Return the type of the moments of each group of channels: float32, `[N, num_groups]`."""
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
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.FOLLOWS, activations=1, ends_update=True)
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
    TRAITS: ClassVar[OpTraits] = mixes(
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
