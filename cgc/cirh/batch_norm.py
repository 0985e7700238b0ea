"""Batch normalization with scale and offset in one op, and its gradient."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    BOOLEAN,
    FLOAT,
    BoolParameter,
    CirhOp,
    FloatParameter,
    TextParameter,
    Value,
    bool_attr,
    float_attr,
    operand_type,
    text_attr,
)
from cgc.cirh.facts import Facts, Fp16, Samples, Work, mixes
from cgc.cirh.types import FLOATS, Tensor, tensor_of, tensor_type
from cgc.cirh.window import NHWC


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
        """Checks for one float vector type over the channels, the last dimension of x; returns it."""
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
        """Two sums over the batch in training; outside of it the gradient takes one."""
        return 2 if self.is_training else int(self.FACTS.gradient_of is not None)

    def verify_(self) -> None:
        """Checks the data format, then the types."""
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
    FACTS: ClassVar[Facts] = mixes(
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
    FACTS: ClassVar[Facts] = mixes(
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
