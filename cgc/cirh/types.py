"""Element types of CIRH and their numpy counterparts; helpers for static tensor types.

Tensors are statically shaped. float64 is left out on purpose: the device computes in 32 bits or less.

As in genuine CIRH text, f16 is the type of the 16-bit format of a program. The function states by
`cs.fp16_type` which one that is: "float16" (IEEE, the default) or "cbfloat16" (1-6-9, see `cgc.precision`). A
module has one of the two, never both. bfloat16 has its own type, bf16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias, cast, get_args

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    Float16Type,
    Float32Type,
    IntegerType,
    NoneAttr,
    Signedness,
    StringAttr,
    TensorType,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, SSAValue

from cgc.errors import InvalidModuleError, InvalidOpError, UnsupportedTypeError

ElementType: TypeAlias = Float32Type | Float16Type | BFloat16Type | IntegerType
Tensor: TypeAlias = TensorType[ElementType]
AnyArray: TypeAlias = NDArray[np.generic]

_ELEMENT_TYPES: dict[str, ElementType] = {
    "float32": Float32Type(),
    "float16": Float16Type(),
    "bfloat16": BFloat16Type(),
    "bool": IntegerType(1),
    "int8": IntegerType(8),
    "uint8": IntegerType(8, Signedness.UNSIGNED),
    "int32": IntegerType(32),
    "int64": IntegerType(64),
    "uint32": IntegerType(32, Signedness.UNSIGNED),
}
_DTYPES: dict[Attribute, np.dtype[np.generic]] = {
    element: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    for name, element in _ELEMENT_TYPES.items()
}
_NAMES: dict[Attribute, str] = {element: name for name, element in _ELEMENT_TYPES.items()}

DTYPE_NAMES = frozenset(_ELEMENT_TYPES)
FLOATS = frozenset({"float32", "float16", "bfloat16"})
INTEGERS = frozenset({"int8", "uint8", "int32", "int64", "uint32"})
BOOL = frozenset({"bool"})
NUMBERS = FLOATS | INTEGERS
SIGNED = FLOATS | frozenset({"int8", "int32", "int64"})
ANY = NUMBERS | BOOL


def element_type(dtype: DTypeLike) -> ElementType:
    """Return the element type of a numpy dtype or dtype name ("float32", "bfloat16", "bool" ...)."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    found = _ELEMENT_TYPES.get(name)
    if found is None:
        hint = " (cast to float32 first)" if name == "float64" else ""
        raise UnsupportedTypeError(
            f"element type {name!r} is not supported{hint}; expected one of {', '.join(sorted(DTYPE_NAMES))}"
        )
    return found


def numpy_dtype(element: Attribute) -> np.dtype[np.generic]:
    """Return the numpy dtype that holds values of an element type; bf16 is `ml_dtypes.bfloat16`."""
    found = _DTYPES.get(element)
    if found is None:
        raise UnsupportedTypeError(
            f"element type {element} is not supported; expected f32, f16, bf16, i1, i8, ui8, i32, i64 or ui32"
        )
    return found


def dtype_name(tensor: Tensor) -> str:
    """Return the numpy name of a tensor's element type: "float32", "bool" ..."""
    found = _NAMES.get(tensor.element_type)
    if found is None:
        raise UnsupportedTypeError(
            f"element type {tensor.element_type} is not supported; "
            "expected f32, f16, bf16, i1, i8, ui8, i32, i64 or ui32"
        )
    return found


def tensor_type(shape: Sequence[int], dtype: DTypeLike | ElementType) -> Tensor:
    """Return the tensor type of a shape and a numpy dtype (or its name), or an element type of the IR."""
    element = dtype if isinstance(dtype, Attribute) else element_type(dtype)
    return _tensor_type(tuple(int(size) for size in shape), element)


_MOST_CHECKED = 1 << 16


@lru_cache(maxsize=_MOST_CHECKED)
def _tensor_type(shape: tuple[int, ...], element: ElementType) -> Tensor:
    """Return a cached tensor type."""
    # A compile asks tens of thousands of times, and xDSL takes 30 microseconds each time.
    return TensorType(element, shape)


# Valid types and their shapes, by identity; the types are kept here, so that identities last. A compile asks
# 200,000 times for a few thousand of them.
_checked: dict[int, tuple[Tensor, tuple[int, ...]]] = {}


def tensor_of(value: SSAValue) -> Tensor:
    """Return the type of an SSA value, checked to be a static tensor of a supported element type."""
    return _known(value.type)[0]


def _known(kind: Attribute) -> tuple[Tensor, tuple[int, ...]]:
    known = _checked.get(id(kind))
    if known is None or known[0] is not kind:
        tensor = require_tensor(kind)
        if len(_checked) >= _MOST_CHECKED:
            _checked.clear()
        known = _checked[id(kind)] = tensor, tensor.get_shape()
    return known


def require_tensor(attribute: Attribute) -> Tensor:
    """Return `attribute` as a tensor type.

    Raises:
        InvalidOpError: not a ranked tensor, a dynamic size, an encoding, or an unsupported element type.
    """
    if not isinstance(attribute, TensorType):
        raise InvalidOpError(f"expected a ranked tensor, got {attribute}")
    if attribute.element_type not in _NAMES:
        hint = "; cast to f32 first" if str(attribute.element_type) == "f64" else ""
        raise InvalidOpError(
            f"element type of {attribute} is not supported, "
            f"expected f32, f16, bf16, i1, i8, ui8, i32, i64 or ui32{hint}"
        )
    if DYNAMIC_INDEX in attribute.get_shape():
        raise InvalidOpError(f"{attribute} has a dynamic size; shapes must be static")
    if not isinstance(attribute.encoding, NoneAttr):
        raise InvalidOpError(f"{attribute} has an encoding; plain tensors are expected")
    return attribute


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """Return the shape of an SSA value."""
    return _known(value.type)[1]


def element_count(tensor: Tensor) -> int:
    """Return the number of elements of a tensor type."""
    return math.prod(tensor.get_shape())


def size_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor in memory; a bool takes one byte."""
    return element_count(tensor) * numpy_dtype(tensor.element_type).itemsize


HalfFormat = Literal["float16", "bfloat16", "cbfloat16"]

HALF_FORMAT = "cs.fp16_type"  # attribute of a function that states the format of f16


def half_format(function: FuncOp) -> HalfFormat:
    """Return the format of f16 in a function.

    Raises:
        InvalidModuleError: the attribute is invalid.
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
    """Return the type of values in a 16-bit format."""
    return element_type("bfloat16" if half == "bfloat16" else "float16")


def is_cb16(value: SSAValue) -> bool:
    """Return whether a value in a function is of cbfloat16."""
    if tensor_of(value).element_type != element_type("float16"):
        return False
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
    function = block.parent_op() if block is not None else None
    return isinstance(function, FuncOp) and half_format(function) == "cbfloat16"
