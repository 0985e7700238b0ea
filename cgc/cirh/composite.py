"""Chains of elementwise ops under one name."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import CirhOp, TextParameter, Value, operand_type
from cgc.cirh.linear import BiasAddOp
from cgc.cirh.types import FLOATS, Tensor, tensor_of

COMPOSITES = {
    "BiasRelu": ("Relu", "NONE"),
    "BiasGelu": ("Gelu", "NONE"),
    "BiasGeluTanh": ("Gelu", "TANH"),
    "BiasTanh": ("Tanh", "NONE"),
    "BiasSigmoid": ("Sigmoid", "NONE"),
    "BiasElu": ("Elu", "NONE"),
    "BiasSoftplus": ("Softplus", "NONE"),
    "BiasHardSigmoid": ("HardSigmoid", "NONE"),
}
"""Name of a chain -> the activation in it, and how that is approximated."""


@irdl_op_definition
class CompositeOp(CirhOp):
    """A bias along the last dimension and an activation of the sum, as `function` says: "BiasRelu" ..."""

    name = "cirh.Composite"
    x = operand_def()
    bias = operand_def()
    result = result_def()
    function_attr = prop_def(StringAttr, prop_name="function")
    function = TextParameter("function")

    def __init__(self, x: Value, bias: Value, function: str) -> None:
        result = self.infer(operand_type(x), operand_type(bias), function)
        super().__init__([x, bias], [result], {"function": StringAttr(function)})

    @classmethod
    def infer(cls, x: Tensor, bias: Tensor, function: str) -> Tensor:
        """Result type: the type of x."""
        if function not in COMPOSITES:
            cls.fail(f"function is {function!r}, expected one of {', '.join(COMPOSITES)}")
        cls.require_dtype("x", x, FLOATS)
        return BiasAddOp.infer(x, bias)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.bias), self.function),)
