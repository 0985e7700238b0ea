"""Which 16-bit format an `f16` of a function stands for.

As in genuine CIRH text, f16 is the type of the 16-bit format of a program, and the function says by
`cs.fp16_type` which one that is: "float16" (IEEE, also where nothing is said) or "cbfloat16" (1-6-9, see
`cgc.precision`). A module has one of the two, never both.
"""

from __future__ import annotations

from typing import Literal

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.types import element_type, tensor_of
from cgc.errors import InvalidModuleError

HalfFormat = Literal["float16", "cbfloat16"]

HALF_FORMAT = "cs.fp16_type"
"""Attribute of the function."""


def half_format(function: FuncOp) -> HalfFormat:
    """What f16 stands for in a function.

    Raises:
        InvalidModuleError: the attribute is something else.
    """
    attribute = function.attributes.get(HALF_FORMAT)
    if attribute is None or attribute == StringAttr("float16"):
        return "float16"
    if attribute == StringAttr("cbfloat16"):
        return "cbfloat16"
    raise InvalidModuleError(
        f"func.func @{function.sym_name.data}: {HALF_FORMAT} is {attribute}, "
        'expected "float16" or "cbfloat16"'
    )


def is_cb16(value: SSAValue) -> bool:
    """Whether a value in a function is of cbfloat16."""
    if tensor_of(value).element_type != element_type("float16"):
        return False
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
    function = block.parent_op() if block is not None else None
    return isinstance(function, FuncOp) and half_format(function) == "cbfloat16"
