"""Activation functions and their gradients, and a bias and an activation as one op."""

from __future__ import annotations

import math
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def

from cgc.cirh.base import (
    FLOAT,
    CirhOp,
    FloatParameter,
    TextParameter,
    Value,
    float_attr,
    operand_type,
    text_attr,
)
from cgc.cirh.elementwise import SigmoidOp, TanhOp, UnaryOp
from cgc.cirh.linear import BiasAddOp
from cgc.cirh.traits import TRANSCENDENTAL, Fp16, OpTraits, Work, pointwise
from cgc.cirh.types import FLOATS, SIGNED, Tensor, tensor_of


@irdl_op_definition
class ReluOp(UnaryOp):
    """`max(x, 0)`."""

    name = "cirh.Relu"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True, activation=True)
    DTYPES: ClassVar[frozenset[str]] = SIGNED


@irdl_op_definition
class EluOp(UnaryOp):
    """`x` where x > 0, else `exp(x) - 1`."""

    name = "cirh.Elu"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL, fp16=Fp16.FOLLOWS, activation=True)


@irdl_op_definition
class SoftplusOp(UnaryOp):
    """`log(1 + exp(x))`."""

    name = "cirh.Softplus"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(transcendental=2), fp16=Fp16.FOLLOWS, activation=True)


@irdl_op_definition
class HardSigmoidOp(UnaryOp):
    """`min(max(x / 6 + 1 / 2, 0), 1)`."""

    name = "cirh.HardSigmoid"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, activation=True)


@irdl_op_definition
class GeluOp(UnaryOp):
    """`x * Phi(x)`; with `approximation = "TANH"` the tanh formula."""

    name = "cirh.Gelu"
    TRAITS: ClassVar[OpTraits] = pointwise(
        Work(transcendental=1, simple=6), fp16=Fp16.FOLLOWS, activation=True
    )
    approximation_attr = prop_def(StringAttr, prop_name="approximation")
    approximation = TextParameter("approximation")

    def __init__(self, x: Value, approximate: bool = False) -> None:
        CirhOp.__init__(self, [x], [self.infer(operand_type(x))], _approximation(approximate))

    @property
    def approximate(self) -> bool:
        """True if by the tanh formula."""
        return self.approximation == _TANH

    def _infer_results(self) -> tuple[Tensor, ...]:
        _require_approximation(self, self.approximation)
        return super()._infer_results()


@irdl_op_definition
class LeakyReluOp(UnaryOp):
    """`x` where x > 0, else `alpha * x`."""

    name = "cirh.LeakyRelu"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, activation=True)
    alpha_attr = prop_def(FLOAT, prop_name="alpha")
    alpha = FloatParameter("alpha")

    def __init__(self, x: Value, alpha: float = 0.2) -> None:
        _require_finite(self, alpha)
        CirhOp.__init__(self, [x], [self.infer(operand_type(x))], {"alpha": float_attr(alpha)})

    def _infer_results(self) -> tuple[Tensor, ...]:
        _require_finite(self, self.alpha)
        return super()._infer_results()


class FeaturesGradOp(CirhOp):
    """Base of gradients computed from the input: `Op(grad, features)`, all of one type."""

    grad = operand_def()
    features = operand_def()
    result = result_def()

    def __init__(self, grad: Value, features: Value) -> None:
        super().__init__([grad, features], [self.infer(operand_type(grad), operand_type(features))])

    @classmethod
    def infer(cls, grad: Tensor, features: Tensor) -> Tensor:
        """Result type: the type of both operands."""
        cls.require_same("features", features, "grad", grad)
        cls.require_dtype("grad", grad, FLOATS)
        return grad

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.grad), tensor_of(self.features)),)


@irdl_op_definition
class ReluGradOp(FeaturesGradOp):
    """`grad` where features > 0, else 0."""

    name = "cirh.ReluGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True, gradient_of=ReluOp, signs_only=True)


@irdl_op_definition
class LeakyReluGradOp(FeaturesGradOp):
    """`grad` where features > 0, else `alpha * grad`."""

    name = "cirh.LeakyReluGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, gradient_of=LeakyReluOp)
    alpha_attr = prop_def(FLOAT, prop_name="alpha")
    alpha = FloatParameter("alpha")

    def __init__(self, grad: Value, features: Value, alpha: float = 0.2) -> None:
        _require_finite(self, alpha)
        result = self.infer(operand_type(grad), operand_type(features))
        CirhOp.__init__(self, [grad, features], [result], {"alpha": float_attr(alpha)})

    def _infer_results(self) -> tuple[Tensor, ...]:
        _require_finite(self, self.alpha)
        return super()._infer_results()


@irdl_op_definition
class GeluGradOp(FeaturesGradOp):
    """`grad` times the derivative of `Gelu` at features."""

    name = "cirh.GeluGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(
        Work(transcendental=2, simple=10), fp16=Fp16.FOLLOWS, gradient_of=GeluOp
    )
    approximation_attr = prop_def(StringAttr, prop_name="approximation")
    approximation = TextParameter("approximation")

    def __init__(self, grad: Value, features: Value, approximate: bool = False) -> None:
        result = self.infer(operand_type(grad), operand_type(features))
        CirhOp.__init__(self, [grad, features], [result], _approximation(approximate))

    @property
    def approximate(self) -> bool:
        """True if of the tanh formula."""
        return self.approximation == _TANH

    def _infer_results(self) -> tuple[Tensor, ...]:
        _require_approximation(self, self.approximation)
        return super()._infer_results()


@irdl_op_definition
class SoftplusGradOp(FeaturesGradOp):
    """`grad * sigmoid(features)`."""

    name = "cirh.SoftplusGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL, fp16=Fp16.FOLLOWS, gradient_of=SoftplusOp)


@irdl_op_definition
class HardSigmoidGradOp(FeaturesGradOp):
    """`grad / 6` where -3 < features < 3, else 0."""

    name = "cirh.HardSigmoidGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, gradient_of=HardSigmoidOp)


class OutputsGradOp(CirhOp):
    """Base of gradients computed from the output; all operands of one type."""

    outputs = operand_def()
    grad = operand_def()
    result = result_def()

    def __init__(self, outputs: Value, grad: Value) -> None:
        super().__init__([outputs, grad], [self.infer(operand_type(outputs), operand_type(grad))])

    @classmethod
    def infer(cls, outputs: Tensor, grad: Tensor) -> Tensor:
        """Result type: the type of both operands."""
        cls.require_same("grad", grad, "outputs", outputs)
        cls.require_dtype("grad", grad, FLOATS)
        return grad

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.outputs), tensor_of(self.grad)),)


@irdl_op_definition
class SigmoidGradOp(OutputsGradOp):
    """`grad * outputs * (1 - outputs)`."""

    name = "cirh.SigmoidGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(simple=3), fp16=Fp16.FOLLOWS, gradient_of=SigmoidOp)


@irdl_op_definition
class TanhGradOp(OutputsGradOp):
    """`grad * (1 - outputs**2)`."""

    name = "cirh.TanhGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(simple=3), fp16=Fp16.FOLLOWS, gradient_of=TanhOp)


@irdl_op_definition
class EluGradOp(CirhOp):
    """`grad` where outputs > 0, else `grad * (outputs + 1)`: the outputs are those of `Elu`.

    With `from_features` the second operand is what `Elu` was applied to, and the factor `exp(features)`.
    """

    name = "cirh.EluGrad"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(simple=3), fp16=Fp16.FOLLOWS, gradient_of=EluOp)
    grad = operand_def()
    outputs = operand_def()
    result = result_def()

    from_features_attr = opt_prop_def(UnitAttr, prop_name="from_features")

    def __init__(self, grad: Value, outputs: Value, from_features: bool = False) -> None:
        result = self.infer(operand_type(grad), operand_type(outputs))
        super().__init__([grad, outputs], [result], {"from_features": UnitAttr()} if from_features else {})

    @property
    def from_features(self) -> bool:
        """True if the second operand is what `Elu` was applied to."""
        return self.from_features_attr is not None

    @property
    def work(self) -> Work:
        """An exponential of features, none of outputs."""
        return TRANSCENDENTAL if self.from_features else self.TRAITS.work

    @classmethod
    def infer(cls, grad: Tensor, outputs: Tensor) -> Tensor:
        """Result type: the type of both operands."""
        cls.require_same("outputs", outputs, "grad", grad)
        cls.require_dtype("grad", grad, FLOATS)
        return grad

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.grad), tensor_of(self.outputs)),)


_EXACT, _TANH = "NONE", "TANH"


def _approximation(approximate: bool) -> dict[str, Attribute]:
    return {"approximation": text_attr(_TANH if approximate else _EXACT)}


def _require_approximation(op: CirhOp, approximation: str) -> None:
    if approximation not in (_EXACT, _TANH):
        op.fail(f"approximation is {approximation!r}, expected {_EXACT!r} or {_TANH!r}")


def _require_finite(op: CirhOp, alpha: float) -> None:
    if not math.isfinite(alpha):
        op.fail(f"alpha is {alpha}, expected a finite number")


# Name of a composite -> its activation, and the approximation of that.
COMPOSITES: dict[str, tuple[type[CirhOp], str]] = {
    "BiasRelu": (ReluOp, "NONE"),
    "BiasGelu": (GeluOp, "NONE"),
    "BiasGeluTanh": (GeluOp, "TANH"),
    "BiasTanh": (TanhOp, "NONE"),
    "BiasSigmoid": (SigmoidOp, "NONE"),
    "BiasElu": (EluOp, "NONE"),
    "BiasSoftplus": (SoftplusOp, "NONE"),
    "BiasHardSigmoid": (HardSigmoidOp, "NONE"),
}


@irdl_op_definition
class CompositeOp(CirhOp):
    """A bias along the last dimension and an activation of the sum, as `function` says: "BiasRelu" ..."""

    name = "cirh.Composite"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS)
    x = operand_def()
    bias = operand_def()
    result = result_def()
    function_attr = prop_def(StringAttr, prop_name="function")
    function = TextParameter("function")

    def __init__(self, x: Value, bias: Value, function: str) -> None:
        result = self.infer(operand_type(x), operand_type(bias), function)
        super().__init__([x, bias], [result], {"function": text_attr(function)})

    @property
    def activation(self) -> type[CirhOp]:
        """The op that the sum is given to."""
        return COMPOSITES[self.function][0]

    @property
    def work(self) -> Work:
        """Work of the activation and of the sum."""
        return self.activation.TRAITS.work.with_simple(1)

    @classmethod
    def infer(cls, x: Tensor, bias: Tensor, function: str) -> Tensor:
        """Result type: the type of x."""
        if function not in COMPOSITES:
            cls.fail(f"function is {function!r}, expected one of {', '.join(COMPOSITES)}")
        cls.require_dtype("x", x, FLOATS)
        return BiasAddOp.infer(x, bias)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.bias), self.function),)
