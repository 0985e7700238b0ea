"""xDSL's printer with its slow parts in one piece: a step of 4,000 ops prints in a third of the time.

xDSL writes a string letter by letter, and a type or a list piece by piece, each through `print`; a step has a
node name and a source line on every op, and a few hundred different types and layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from io import StringIO

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, TensorType, UnitAttr, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.printer import Printer

from cgc.cirh.base import CirhOp, is_layer_attr

_ESCAPED = re.compile(rb"[^ !#-\[\]-~]")
"""All bytes but printable ASCII without quote and backslash."""


class TextPrinter(Printer):
    """Gives the text of `Printer`."""

    @cached_property
    def _texts(self) -> dict[int, tuple[Attribute, str]]:
        """Tensor types and layers met so far and their texts, by identity: hashing takes longer."""
        return {}

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        """Writes text; only what has line ends needs xDSL's care for indentation."""
        if "\n" in text or self.stream is None:
            super().print_string(text, indent=indent)
        else:
            self._current_column += len(text)
            self.stream.write(text)

    def print_op(self, op: Operation) -> None:
        """Writes an op; one of CIRH with the usual text in a few pieces."""
        if not isinstance(op, CirhOp) or not self._is_usual(op):
            super().print_op(op)
            return
        results, operands = (", ".join(map(self._named, values)) for values in (op.results, op.operands))
        self.print_string(f"{results} = {op.name} {operands}" if operands else f"{results} = {op.name}")
        self.print_op_attributes(op.ordered_attributes())
        self.print_string(" : ")
        self.print_function_type(op.operand_types, op.result_types)

    def _is_usual(self, op: CirhOp) -> bool:
        has_own_text = type(op).print is not CirhOp.print or not op.results
        return not (
            has_own_text or self.print_generic_format or self.print_debuginfo or self.diagnostic.op_messages
        )

    def _named(self, value: SSAValue) -> str:
        """The name of a value as it is written; a new value gets one."""
        return f"%{self._ssa_values.get(value) or self.new_name(value)}"

    def new_name(self, value: SSAValue) -> str:
        """Names a value that has no name yet."""
        hint = value.name_hint
        if not hint:
            name = self._get_new_valid_name_id()
        else:
            count = self.ssa_names.get(hint, 0)
            self.ssa_names[hint] = count + 1
            name = f"{hint}_{count}" if count else hint
        self._ssa_values[value] = name
        return name

    def print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        """Writes attributes in braces, in one piece."""
        parts = []
        for name, attribute in attr_dict.items():
            value = self._attribute_text(attribute)
            parts.append(f"{_name_text(name)} = {value}" if value else _name_text(name))
        self.print_string(f"{{{', '.join(parts)}}}")

    def _attribute_text(self, attribute: Attribute) -> str:
        """The text of an attribute; nothing where its name says it all."""
        match attribute:
            case StringAttr():
                return _quoted(attribute.data.encode())
            case UnitAttr():
                return ""
            case IntegerAttr() if attribute.type == i64:
                return f"{attribute.value.data} : i64"
            case IntegerAttr() if attribute.type == i1:
                return "true" if attribute.value.data else "false"
            case DenseArrayBase() if attribute.elt_type == i64:
                values = ", ".join(map(str, attribute.get_values()))
                return f"array<i64: {values}>" if values else "array<i64>"
        if id(attribute) in self._texts or isinstance(attribute, TensorType) or is_layer_attr(attribute):
            return self._text_of(attribute)
        return _printed(attribute)

    def print_bytes_literal(self, bytestring: bytes) -> None:
        """Writes a string in quotes."""
        self.print_string(_quoted(bytestring))

    def print_attribute(self, attribute: Attribute) -> None:
        """Writes an attribute; the text of a tensor type, or of a layer, is made once."""
        if id(attribute) in self._texts or isinstance(attribute, TensorType) or is_layer_attr(attribute):
            self.print_string(self._text_of(attribute))
        else:
            super().print_attribute(attribute)

    def print_function_type(
        self, input_types: Iterable[Attribute], output_types: Iterable[Attribute]
    ) -> None:
        """Writes `(types) -> type`; of tensors alone in one piece."""
        inputs, outputs = tuple(input_types), tuple(output_types)
        if not all(isinstance(kind, TensorType) for kind in (*inputs, *outputs)):
            super().print_function_type(inputs, outputs)
            return
        results = ", ".join(map(self._text_of, outputs))
        if len(outputs) != 1:
            results = f"({results})"
        self.print_string(f"({', '.join(map(self._text_of, inputs))}) -> {results}")

    def _text_of(self, attribute: Attribute) -> str:
        known = self._texts.get(id(attribute))
        if known is None:
            known = self._texts[id(attribute)] = attribute, _text(attribute)
        return known[1]


def _quoted(text: bytes) -> str:
    return f'"{_ESCAPED.sub(_escape, text).decode("ascii")}"'


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()
    return b"\\\\" if byte == b"\\" else b"\\%02X" % byte[0]


@lru_cache(maxsize=4096)
def _text(attribute: Attribute) -> str:
    return _printed(attribute)


def _printed(attribute: Attribute) -> str:
    out = StringIO()
    Printer(stream=out).print_attribute(attribute)
    return out.getvalue()


@lru_cache(maxsize=4096)
def _name_text(name: str) -> str:
    """The name of an attribute, in quotes where it is no identifier."""
    out = StringIO()
    Printer(stream=out).print_identifier_or_string_literal(name)
    return out.getvalue()
