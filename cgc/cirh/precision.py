"""Which 16-bit format an `f16` of a function stands for.

As in genuine CIRH text, f16 is the type of the 16-bit format of a program, and the function says by
`cs.fp16_type` which one that is: "float16" (IEEE, also where nothing is said) or "cbfloat16" (1-6-9, see
`cgc.precision`). A module has one of the two, never both. bfloat16 has a type of its own, bf16.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.types import ElementType, element_type, tensor_of
from cgc.errors import InvalidModuleError

HalfFormat = Literal["float16", "bfloat16", "cbfloat16"]

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
    for known in get_args(HalfFormat):
        if attribute == StringAttr(known):
            return cast(HalfFormat, known)
    raise InvalidModuleError(
        f"func.func @{function.sym_name.data}: {HALF_FORMAT} is {attribute}, "
        f"expected one of {', '.join(get_args(HalfFormat))}"
    )


def half_type(half: HalfFormat) -> ElementType:
    """The type of values in a 16-bit format."""
    return element_type("bfloat16" if half == "bfloat16" else "float16")


def is_cb16(value: SSAValue) -> bool:
    """Whether a value in a function is of cbfloat16."""
    if tensor_of(value).element_type != element_type("float16"):
        return False
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
    function = block.parent_op() if block is not None else None
    return isinstance(function, FuncOp) and half_format(function) == "cbfloat16"
