"""Dense constants: between numpy and `dense<...>` attributes, and their text.

xDSL's own text is not used: it takes -0.0 for 0.0, reads the hex bits of NaN and infinities back as integers,
unpacks every element of large constants, and rebuilds a type constraint at every constant that it parses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects.builtin import BytesAttr, DenseIntOrFPElementsAttr, IntegerType
from xdsl.parser import Parser
from xdsl.printer import Printer

from cgc.cirh.types import AnyArray, Tensor, element_count, numpy_dtype, require_tensor, tensor_type
from cgc.errors import InvalidOpError

# Constants of more elements than this, unless all are equal, print as the hex form of their bytes.
LITERAL_LIMIT = 64

# Limit of a constant, which takes its full size in memory even for one repeated number; as in TensorFlow.
LARGEST_BYTES = 2**31

_BOOL = IntegerType(1)


def dense_attr(array: AnyArray) -> DenseIntOrFPElementsAttr:
    """Return a dense attribute of an array. Bools are stored as bytes 0 and 1."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return DenseIntOrFPElementsAttr(tensor_type(array.shape, array.dtype), BytesAttr(little.tobytes()))


def dense_array(value: DenseIntOrFPElementsAttr) -> AnyArray:
    """Return the values of a dense attribute: a read-only array, which shares memory unless of bools."""
    tensor = require_tensor(value.type)
    flat: AnyArray
    if tensor.element_type == _BOOL:
        # attributes made by xDSL hold `true` as 0xFF, which numpy does not accept as a bool
        flat = np.frombuffer(value.data.data, np.uint8) != 0
        flat.flags.writeable = False
    else:
        flat = np.frombuffer(value.data.data, numpy_dtype(tensor.element_type).newbyteorder("<"))
    return flat.reshape(tensor.get_shape())


def canonical_dense(value: DenseIntOrFPElementsAttr) -> DenseIntOrFPElementsAttr:
    """Return the same values with bools as bytes 0 and 1, so that equal constants are equal attributes."""
    if value.get_element_type() != _BOOL or not set(value.data.data) - {0, 1}:
        return value
    return DenseIntOrFPElementsAttr(value.type, BytesAttr(dense_array(value).tobytes()))


def dense_splat(value: DenseIntOrFPElementsAttr) -> Any | None:
    """Return the numpy scalar that all elements are, bit for bit; None if they differ or there are none."""
    data, dtype = value.data.data, numpy_dtype(value.type.element_type)
    size = dtype.itemsize
    # Bytes are compared, not values: -0.0 is not 0.0. The first two elements settle most large constants.
    first = data[:size]
    if not data or data[size : 2 * size] not in (first, b"") or data != first * (len(data) // size):
        return None
    if dtype.kind == "b":  # see `dense_array`
        return np.bool_(data[0] != 0)
    return np.frombuffer(data, dtype.newbyteorder("<"), 1)[0]


def print_dense(value: DenseIntOrFPElementsAttr, printer: Printer) -> None:
    """Print `dense<...> : type` so that `parse_dense` reads the same bits.

    Floats without a short decimal form, infinities and NaN are printed as the hex of their bits.
    """
    array, splat = dense_array(value), dense_splat(value)
    printer.print_string("dense<")
    if splat is not None:
        _print_elements(array.reshape(-1)[:1].reshape(()), value, printer)
    elif array.size > LITERAL_LIMIT:
        printer.print_string(f'"0x{value.data.data.hex().upper()}"')
    elif array.size:
        _print_elements(array, value, printer)
    printer.print_string("> : ")
    printer.print_attribute(value.type)


def _print_elements(array: AnyArray, value: DenseIntOrFPElementsAttr, printer: Printer) -> None:
    if array.ndim:
        printer.print_string("[")
        printer.print_list(list(array), lambda item: _print_elements(np.asarray(item), value, printer))
        printer.print_string("]")
        return
    element: Any = value.get_element_type()
    if isinstance(element, IntegerType):
        printer.print_int(int(array.item()), element)
    elif math.isfinite(number := float(array)):
        printer.print_float(number, element)
    else:
        # xDSL would print another NaN: it takes the bits through a Python float
        printer.print_string(f"0x{array.tobytes()[::-1].hex().upper()}")


@dataclass(frozen=True)
class _Bits:
    value: int


_Element: TypeAlias = bool | int | float | _Bits


def parse_dense(parser: Parser) -> DenseIntOrFPElementsAttr:
    """Parse `dense<...> : type`; in a tensor of floats, a hex integer gives the bits of an element."""
    parser.parse_keyword("dense")
    start = parser.pos
    parser.parse_punctuation("<")
    literal: bytes | tuple[list[_Element], tuple[int, ...]]
    if (text := parser.parse_optional_str_literal()) is not None:
        literal = _hex_bytes(parser, text, start)
    elif parser.parse_optional_punctuation(">") is None:
        literal = _parse_elements(parser)
    else:
        return _make(parser, b"", _parse_type(parser), start)
    parser.parse_punctuation(">")
    tensor = _parse_type(parser)
    data = literal if isinstance(literal, bytes) else _pack(parser, *literal, tensor, start)
    return _make(parser, data, tensor, start)


def _parse_type(parser: Parser) -> Tensor:
    parser.parse_punctuation(":")
    start = parser.pos
    declared = parser.parse_type()
    try:
        return require_tensor(declared)
    except InvalidOpError as error:
        parser.raise_error(str(error), start, parser.pos)


def _hex_bytes(parser: Parser, text: str, start: int) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        parser.raise_error(f'expected hex bytes like "0x0000803F", got {text[:20]!r}', start, start)


def _make(parser: Parser, data: bytes, tensor: Tensor, start: int) -> DenseIntOrFPElementsAttr:
    size, count = numpy_dtype(tensor.element_type).itemsize, element_count(tensor)
    if size * count > LARGEST_BYTES:
        parser.raise_error(
            f"a constant of type {tensor} takes {size * count} bytes, expected {LARGEST_BYTES} or less; "
            "repeat a smaller one with cirh.BroadcastInDim",
            start,
            start,
        )
    if len(data) == size:
        data *= count
    if len(data) != size * count:
        parser.raise_error(
            f"the constant holds {len(data)} bytes, expected {size * count} for {tensor}", start, start
        )
    return DenseIntOrFPElementsAttr(tensor, BytesAttr(data))


def _parse_elements(parser: Parser) -> tuple[list[_Element], tuple[int, ...]]:
    """Return the elements in row-major order and the shape of the brackets: () for a single element."""
    start = parser.pos
    parts = parser.parse_optional_comma_separated_list(
        parser.Delimiter.SQUARE, lambda: _parse_elements(parser)
    )
    if parts is None:
        return [_parse_element(parser)], ()
    shapes = {shape for _, shape in parts}
    if len(shapes) > 1:
        parser.raise_error("the brackets of the constant enclose lists of different lengths", start, start)
    inner = shapes.pop() if shapes else ()
    return [element for elements, _ in parts for element in elements], (len(parts), *inner)


def _parse_element(parser: Parser) -> _Element:
    start = parser.pos
    boolean = parser.parse_optional_boolean()
    if boolean is not None:
        return boolean
    number = parser.parse_number()
    text = parser.lexer.input.content[start : start + 2]
    return _Bits(number) if isinstance(number, int) and text == "0x" else number


def _pack(
    parser: Parser, elements: list[_Element], shape: tuple[int, ...], tensor: Tensor, start: int
) -> bytes:
    if shape not in ((), tensor.get_shape()):
        parser.raise_error(f"the constant has the shape {shape}, expected that of {tensor}", start, start)
    dtype = numpy_dtype(tensor.element_type)
    try:
        return b"".join(_element_bytes(element, dtype) for element in elements)
    except (OverflowError, ValueError) as error:
        parser.raise_error(f"{error} in a constant of type {tensor}", start, start)


def _element_bytes(element: _Element, dtype: np.dtype[np.generic]) -> bytes:
    if dtype.kind in "biu":
        return _integer_bytes(element.value if isinstance(element, _Bits) else element, dtype)
    if isinstance(element, _Bits):
        return element.value.to_bytes(dtype.itemsize, "little")
    if isinstance(element, bool):
        raise ValueError(f"got {str(element).lower()}, expected a number")
    with np.errstate(over="ignore"):
        return np.asarray(element, np.float64).astype(dtype).tobytes()


def _integer_bytes(element: bool | int | float, dtype: np.dtype[np.generic]) -> bytes:
    if isinstance(element, float) or (isinstance(element, bool) and dtype != np.bool_):
        raise ValueError(f"got {str(element).lower()}, expected an integer")
    if dtype == np.bool_:
        if element not in (0, 1):
            raise ValueError(f"got {element}, expected true or false")
        return bytes([int(element)])
    limits = np.iinfo(dtype.name)
    if not limits.min <= element <= limits.max:
        raise ValueError(f"got {element}, expected {limits.min} to {limits.max}")
    return int(element).to_bytes(dtype.itemsize, "little", signed=dtype.kind == "i")
