"""Chains of elementwise ops under one name."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.activation import EluOp, GeluOp, HardSigmoidOp, ReluOp, SoftplusOp
from cgc.cirh.base import CirhOp, TextParameter, Value, operand_type, text_attr
from cgc.cirh.elementwise import SigmoidOp, TanhOp
from cgc.cirh.facts import Facts, Fp16, Work, pointwise
from cgc.cirh.linear import BiasAddOp
from cgc.cirh.types import FLOATS, Tensor, tensor_of

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
"""Name of a chain -> the activation in it, and how that is approximated."""


@irdl_op_definition
class CompositeOp(CirhOp):
    """A bias along the last dimension and an activation of the sum, as `function` says: "BiasRelu" ..."""

    name = "cirh.Composite"
    FACTS: ClassVar[Facts] = pointwise(fp16=Fp16.FOLLOWS)
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
        """That of the activation and of the sum."""
        return self.activation.FACTS.work.with_simple(1)

    @classmethod
    def infer(cls, x: Tensor, bias: Tensor, function: str) -> Tensor:
        """Result type: the type of x."""
        if function not in COMPOSITES:
            cls.fail(f"function is {function!r}, expected one of {', '.join(COMPOSITES)}")
        cls.require_dtype("x", x, FLOATS)
        return BiasAddOp.infer(x, bias)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.bias), self.function),)
