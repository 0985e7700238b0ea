"""Elementwise ops. Operands of one op have equal types: there is no implicit broadcasting."""

from __future__ import annotations

from typing import ClassVar

from numpy.typing import DTypeLike
from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Commutative

from cgc.cirh.base import (
    BOOLEAN,
    FALSE,
    BoolParameter,
    CirhOp,
    TextParameter,
    Value,
    bool_attr,
    operand_type,
    text_attr,
)
from cgc.cirh.traits import DIVIDE, SIMPLE, TRANSCENDENTAL, Elements, Fp16, OpTraits, Samples, Work, pointwise
from cgc.cirh.types import (
    ANY,
    BOOL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    ElementType,
    Tensor,
    tensor_of,
    tensor_type,
)

DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


class BinaryOp(CirhOp):
    """Base of `Op(lhs, rhs) -> result`, all of one type."""

    DTYPES: ClassVar[frozenset[str]] = NUMBERS

    lhs = operand_def()
    rhs = operand_def()
    result = result_def()

    def __init__(self, lhs: Value, rhs: Value) -> None:
        super().__init__([lhs, rhs], [self.infer(operand_type(lhs), operand_type(rhs))])

    @classmethod
    def infer(cls, lhs: Tensor, rhs: Tensor) -> Tensor:
        """Result type: the type of both operands."""
        cls.require_same("rhs", rhs, "lhs", lhs)
        cls.require_dtype("lhs", lhs, cls.DTYPES)
        return lhs

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.lhs), tensor_of(self.rhs)),)


@irdl_op_definition
class AddOp(BinaryOp):
    """Sum: `lhs + rhs`. Integers wrap."""

    name = "cirh.Add"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS)
    traits = traits_def(Commutative())


@irdl_op_definition
class SubOp(BinaryOp):
    """Difference: `lhs - rhs`. Integers wrap."""

    name = "cirh.Sub"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS)


@irdl_op_definition
class MulOp(BinaryOp):
    """Product: `lhs * rhs`. Integers wrap."""

    name = "cirh.Mul"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS)
    traits = traits_def(Commutative())


@irdl_op_definition
class DivOp(BinaryOp):
    """Quotient of floats: `lhs / rhs`. Integers have `FloorDiv`."""

    name = "cirh.Div"
    TRAITS: ClassVar[OpTraits] = pointwise(DIVIDE, fp16=Fp16.FOLLOWS)
    DTYPES: ClassVar[frozenset[str]] = FLOATS


@irdl_op_definition
class PowOp(BinaryOp):
    """Power: `lhs ** rhs`."""

    name = "cirh.Pow"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(transcendental=2))


@irdl_op_definition
class MaxOp(BinaryOp):
    """Larger of both; NaN where either is NaN. Not commutative: of 0.0 and -0.0 either may come out."""

    name = "cirh.Max"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True)


@irdl_op_definition
class MinOp(BinaryOp):
    """Smaller of both; NaN where either is NaN. Not commutative: of 0.0 and -0.0 either may come out."""

    name = "cirh.Min"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True)


@irdl_op_definition
class FloorDivOp(BinaryOp):
    """Quotient rounded toward minus infinity."""

    name = "cirh.FloorDiv"
    TRAITS: ClassVar[OpTraits] = pointwise(DIVIDE)


@irdl_op_definition
class FloorModOp(BinaryOp):
    """Remainder with the sign of the divisor, as Python's `%`."""

    name = "cirh.FloorMod"
    TRAITS: ClassVar[OpTraits] = pointwise(DIVIDE)


@irdl_op_definition
class Atan2Op(BinaryOp):
    """Angle of the point (rhs, lhs) in radians."""

    name = "cirh.Atan2"
    TRAITS: ClassVar[OpTraits] = pointwise(Work(transcendental=2))
    DTYPES: ClassVar[frozenset[str]] = FLOATS


@irdl_op_definition
class AndOp(BinaryOp):
    """Logical and of i1, bitwise and of integers."""

    name = "cirh.And"
    TRAITS: ClassVar[OpTraits] = pointwise()
    traits = traits_def(Commutative())
    DTYPES: ClassVar[frozenset[str]] = BOOL | INTEGERS


@irdl_op_definition
class OrOp(BinaryOp):
    """Logical or of i1, bitwise or of integers."""

    name = "cirh.Or"
    TRAITS: ClassVar[OpTraits] = pointwise()
    traits = traits_def(Commutative())
    DTYPES: ClassVar[frozenset[str]] = BOOL | INTEGERS


@irdl_op_definition
class XorOp(BinaryOp):
    """Exclusive or of i1, bitwise exclusive or of integers."""

    name = "cirh.Xor"
    TRAITS: ClassVar[OpTraits] = pointwise()
    traits = traits_def(Commutative())
    DTYPES: ClassVar[frozenset[str]] = BOOL | INTEGERS


class UnaryOp(CirhOp):
    """Base of `Op(x) -> result` of the type of x."""

    DTYPES: ClassVar[frozenset[str]] = FLOATS

    x = operand_def()
    result = result_def()

    def __init__(self, x: Value) -> None:
        super().__init__([x], [self.infer(operand_type(x))])

    @classmethod
    def infer(cls, x: Tensor) -> Tensor:
        """Result type: the type of x."""
        cls.require_dtype("x", x, cls.DTYPES)
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x)),)


@irdl_op_definition
class NegOp(UnaryOp):
    """Negation: `-x`."""

    name = "cirh.Neg"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True)
    DTYPES: ClassVar[frozenset[str]] = SIGNED


@irdl_op_definition
class AbsOp(UnaryOp):
    """Absolute value."""

    name = "cirh.Abs"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True)
    DTYPES: ClassVar[frozenset[str]] = SIGNED


@irdl_op_definition
class ExpOp(UnaryOp):
    """Exponential."""

    name = "cirh.Exp"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)


@irdl_op_definition
class Expm1Op(UnaryOp):
    """`exp(x) - 1`, accurate near 0."""

    name = "cirh.Expm1"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)


@irdl_op_definition
class LogOp(UnaryOp):
    """Natural logarithm."""

    name = "cirh.Log"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)


@irdl_op_definition
class Log1pOp(UnaryOp):
    """`log(1 + x)`, accurate near 0."""

    name = "cirh.Log1p"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)


@irdl_op_definition
class SqrtOp(UnaryOp):
    """Square root."""

    name = "cirh.Sqrt"
    TRAITS: ClassVar[OpTraits] = pointwise(DIVIDE)


@irdl_op_definition
class RsqrtOp(UnaryOp):
    """`1 / sqrt(x)`."""

    name = "cirh.Rsqrt"
    TRAITS: ClassVar[OpTraits] = pointwise(DIVIDE)


@irdl_op_definition
class ReciprocalOp(UnaryOp):
    """`1 / x`."""

    name = "cirh.Reciprocal"
    TRAITS: ClassVar[OpTraits] = pointwise(DIVIDE)


@irdl_op_definition
class SinOp(UnaryOp):
    """Sine of radians."""

    name = "cirh.Sin"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)


@irdl_op_definition
class CosOp(UnaryOp):
    """Cosine of radians."""

    name = "cirh.Cos"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)


@irdl_op_definition
class TanhOp(UnaryOp):
    """Hyperbolic tangent."""

    name = "cirh.Tanh"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL, fp16=Fp16.FOLLOWS, activation=True)


@irdl_op_definition
class SigmoidOp(UnaryOp):
    """`1 / (1 + exp(-x))`."""

    name = "cirh.Sigmoid"
    TRAITS: ClassVar[OpTraits] = pointwise(
        Work(transcendental=1, divide=1), fp16=Fp16.FOLLOWS, activation=True
    )


@irdl_op_definition
class SignOp(UnaryOp):
    """-1, 0 or 1; NaN for NaN."""

    name = "cirh.Sign"
    TRAITS: ClassVar[OpTraits] = pointwise()
    DTYPES: ClassVar[frozenset[str]] = SIGNED


@irdl_op_definition
class FloorOp(UnaryOp):
    """Rounds toward minus infinity."""

    name = "cirh.Floor"
    TRAITS: ClassVar[OpTraits] = pointwise()


@irdl_op_definition
class CeilOp(UnaryOp):
    """Rounds toward plus infinity."""

    name = "cirh.Ceil"
    TRAITS: ClassVar[OpTraits] = pointwise()


@irdl_op_definition
class RoundOp(UnaryOp):
    """Rounds to the nearest integer, halves to the even one."""

    name = "cirh.Round"
    TRAITS: ClassVar[OpTraits] = pointwise()


@irdl_op_definition
class ErfOp(UnaryOp):
    """Error function."""

    name = "cirh.Erf"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)


@irdl_op_definition
class NotOp(UnaryOp):
    """Logical not of i1, bitwise complement of integers."""

    name = "cirh.Not"
    TRAITS: ClassVar[OpTraits] = pointwise()
    DTYPES: ClassVar[frozenset[str]] = BOOL | INTEGERS


@irdl_op_definition
class IsFiniteOp(UnaryOp):
    """True where x is neither infinite nor NaN."""

    name = "cirh.IsFinite"
    TRAITS: ClassVar[OpTraits] = pointwise()

    @classmethod
    def infer(cls, x: Tensor) -> Tensor:
        """Result type: i1 of the shape of x."""
        cls.require_dtype("x", x, FLOATS)
        return tensor_type(x.get_shape(), "bool")


@irdl_op_definition
class CompareOp(CirhOp):
    """Comparison of each pair of elements; any comparison with NaN but NE is false."""

    name = "cirh.Compare"
    TRAITS: ClassVar[OpTraits] = pointwise()
    lhs = operand_def()
    rhs = operand_def()
    result = result_def()
    direction_attr = prop_def(StringAttr, prop_name="comparison_direction")
    direction = TextParameter("comparison_direction")

    def __init__(self, lhs: Value, rhs: Value, direction: str) -> None:
        result = self.infer(operand_type(lhs), operand_type(rhs), direction)
        super().__init__([lhs, rhs], [result], {"comparison_direction": text_attr(direction)})

    @classmethod
    def infer(cls, lhs: Tensor, rhs: Tensor, direction: str) -> Tensor:
        """Result type: i1 of the shape of the operands."""
        if direction not in DIRECTIONS:
            cls.fail(f"comparison_direction is {direction!r}, expected one of {', '.join(DIRECTIONS)}")
        cls.require_same("rhs", rhs, "lhs", lhs)
        cls.require_dtype("lhs", lhs, ANY)
        return tensor_type(lhs.get_shape(), "bool")

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.lhs), tensor_of(self.rhs), self.direction),)


@irdl_op_definition
class SelectOp(CirhOp):
    """`on_true` where cond, else `on_false`; one shape."""

    name = "cirh.Select"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True)
    cond = operand_def()
    on_true = operand_def()
    on_false = operand_def()
    result = result_def()

    def __init__(self, cond: Value, on_true: Value, on_false: Value) -> None:
        result = self.infer(operand_type(cond), operand_type(on_true), operand_type(on_false))
        super().__init__([cond, on_true, on_false], [result])

    @classmethod
    def infer(cls, cond: Tensor, on_true: Tensor, on_false: Tensor) -> Tensor:
        """Result type: the type of both branches."""
        cls.require_same("on_false", on_false, "on_true", on_true)
        expected = tensor_type(on_true.get_shape(), "bool")
        if cond != expected:
            cls.fail(f"cond has type {cond}, expected {expected}")
        return on_true

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.cond), tensor_of(self.on_true), tensor_of(self.on_false)),)


@irdl_op_definition
class ClampOp(CirhOp):
    """`min(max(x, minimum), maximum)`; the bounds have rank 0."""

    name = "cirh.Clamp"
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS, exact=True)
    x = operand_def()
    minimum = operand_def()
    maximum = operand_def()
    result = result_def()

    def __init__(self, x: Value, minimum: Value, maximum: Value) -> None:
        result = self.infer(operand_type(x), operand_type(minimum), operand_type(maximum))
        super().__init__([x, minimum, maximum], [result])

    @classmethod
    def infer(cls, x: Tensor, minimum: Tensor, maximum: Tensor) -> Tensor:
        """Result type: the type of x."""
        cls.require_dtype("x", x, NUMBERS)
        cls.require_scalar("minimum", minimum, x)
        cls.require_scalar("maximum", maximum, x)
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.minimum), tensor_of(self.maximum)),)


@irdl_op_definition
class CastOp(CirhOp):
    """Conversion to another element type; floats become integers by dropping the fraction, i1 by != 0."""

    name = "cirh.Cast"
    TRAITS: ClassVar[OpTraits] = OpTraits(
        elements=Elements.CONVERTED, work=SIMPLE, fp16=Fp16.NEVER, samples=Samples.KEPT
    )
    x = operand_def()
    result = result_def()
    truncate_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="Truncate")
    truncate = BoolParameter("Truncate")

    def __init__(self, x: Value, dtype: DTypeLike | ElementType, truncate: bool = False) -> None:
        super().__init__([x], [self.infer(operand_type(x), dtype)], {"Truncate": bool_attr(truncate)})

    @classmethod
    def infer(cls, x: Tensor, dtype: DTypeLike | ElementType) -> Tensor:
        """Result type: the shape of x with elements of `dtype`."""
        return tensor_type(x.get_shape(), dtype)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.result).element_type),)


class ExtendOp(CirhOp):
    """Base of `Op(x) -> result`: integers of more bits."""

    x = operand_def()
    result = result_def()

    def __init__(self, x: Value, dtype: DTypeLike | ElementType) -> None:
        super().__init__([x], [self.infer(operand_type(x), dtype)])

    @classmethod
    def infer(cls, x: Tensor, dtype: DTypeLike | ElementType) -> Tensor:
        """Result type: the shape of x with integers of `dtype`, which has more bits."""
        result = tensor_type(x.get_shape(), dtype)
        cls.require_dtype("x", x, INTEGERS | BOOL)
        cls.require_dtype("result", result, INTEGERS)
        if _bits(result) <= _bits(x):
            cls.fail(f"result has type {result}, expected integers of more bits than those of {x}")
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.result).element_type),)


def _bits(tensor: Tensor) -> int:
    return int(tensor.element_type.bitwidth)


@irdl_op_definition
class ExtSIOp(ExtendOp):
    """Integers of more bits, filled with the highest bit of x: its value if x is read as signed."""

    name = "cirh.ExtSI"
    TRAITS: ClassVar[OpTraits] = OpTraits(
        elements=Elements.CONVERTED, work=SIMPLE, fp16=Fp16.NEVER, samples=Samples.KEPT
    )


@irdl_op_definition
class ExtUIOp(ExtendOp):
    """Integers of more bits, filled with zeros: the value of x if it is read as unsigned."""

    name = "cirh.ExtUI"
    TRAITS: ClassVar[OpTraits] = OpTraits(
        elements=Elements.CONVERTED, work=SIMPLE, fp16=Fp16.NEVER, samples=Samples.KEPT
    )


@irdl_op_definition
class FscaleOp(CirhOp):
    """`x * 2**exponent`, which changes only the exponent; exponent is a rank-0 i32."""

    name = "cirh.Fscale"
    TRAITS: ClassVar[OpTraits] = pointwise()
    x = operand_def()
    exponent = operand_def()
    result = result_def()

    def __init__(self, x: Value, exponent: Value) -> None:
        super().__init__([x, exponent], [self.infer(operand_type(x), operand_type(exponent))])

    @classmethod
    def infer(cls, x: Tensor, exponent: Tensor) -> Tensor:
        """Result type: the type of x."""
        cls.require_dtype("x", x, FLOATS)
        cls.require_same("exponent", exponent, "an exponent", tensor_type([], "int32"))
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.exponent)),)
