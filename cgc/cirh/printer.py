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

from cgc.cirh.base import CirhOp, attribute_names, is_layer_attr

_ESCAPED = re.compile(rb"[^ !#-\[\]-~]")
"""All bytes but printable ASCII without quote and backslash."""


class TextPrinter(Printer):
    """Gives the text of `Printer`."""

    @cached_property
    def _texts(self) -> dict[int, tuple[Attribute, str]]:
        """Tensor types and layers met so far and their texts, by identity: hashing takes longer."""
        return {}

    @cached_property
    def _known_ops(self) -> dict[tuple[object, ...], tuple[tuple[str, str], CirhOp]]:
        """What `_known_texts` has found."""
        return {}

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        """Writes text; only what has line ends needs xDSL's care for indentation."""
        if "\n" in text or self.stream is None:
            super().print_string(text, indent=indent)
        else:
            self._current_column += len(text)
            self.stream.write(text)

    def _print_new_line(self, indent: int | None = None, print_message: bool = True) -> None:
        if self._next_line_callback or self.stream is None:
            super()._print_new_line(indent, print_message)
            return
        spaces = self.indent_num_spaces * (self._indent if indent is None else indent)
        self.stream.write("\n" + " " * spaces)
        self._current_line += 1
        self._current_column = spaces

    def print_op(self, op: Operation) -> None:
        """Writes an op; one of CIRH with the usual text in one piece."""
        if not isinstance(op, CirhOp) or not self._is_usual(op):
            super().print_op(op)
            return
        names, read = self._ssa_values, op.operand_values
        results = ", ".join([f"%{names.get(value) or self.new_name(value)}" for value in op.results])
        operands = ", ".join([f"%{names.get(value) or self.new_name(value)}" for value in read])
        space = " " if operands else ""
        self.print_string(f"{results} = {op.name}{space}{operands}{self._behind_operands(op)}")

    def _behind_operands(self, op: CirhOp) -> str:
        """Attributes and types; of the own attributes and the types of an op the text is made once."""
        own, types = self._known_texts(op, op.properties)
        others = [self._named_attribute(name, op.attributes[name]) for name in sorted(op.attributes)]
        parts = ", ".join([own, *others] if own else others)
        return f" {{{parts}}}{types}" if parts else types

    def _known_texts(self, op: CirhOp, attributes: Mapping[str, Attribute]) -> tuple[str, str]:
        """(attributes without braces, types); the same objects have the same text."""
        key = (
            type(op),
            *attributes,
            *map(id, attributes.values()),
            *[id(value.type) for value in op.operand_values],
            *[id(value.type) for value in op.results],
        )
        known = self._known_ops.get(key)
        if known is None:
            texts = self._attributes_of(op), self._types_of(op)
            # The op is kept, so that nothing else gets the identities of what it has.
            known = self._known_ops[key] = texts, op
        return known[0]

    def _attributes_of(self, op: CirhOp) -> str:
        """The own attributes of an op, in their order of definition."""
        names = [name for name in attribute_names(type(op)) if name in op.properties]
        return self.joined({name: op.properties[name] for name in names})

    def _types_of(self, op: CirhOp) -> str:
        types = [[value.type for value in values] for values in (op.operand_values, op.results)]
        inputs, outputs = ([self.attribute_text(kind) for kind in kinds] for kinds in types)
        results = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
        return f" : ({', '.join(inputs)}) -> {results}"

    def _is_usual(self, op: CirhOp) -> bool:
        has_own_text = type(op).print is not CirhOp.print or not op.results
        return not (
            has_own_text or self.print_generic_format or self.print_debuginfo or self.diagnostic.op_messages
        )

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
        self.print_string(f"{{{self.joined(attr_dict)}}}")

    def joined(self, attributes: Mapping[str, Attribute]) -> str:
        """Attributes as they stand in braces."""
        return ", ".join([self._named_attribute(*item) for item in attributes.items()])

    def _named_attribute(self, name: str, attribute: Attribute) -> str:
        value = self.attribute_text(attribute)
        return f"{_name_text(name)} = {value}" if value else _name_text(name)

    def attribute_text(self, attribute: Attribute) -> str:
        """The text of an attribute; nothing where its name says it all."""
        if type(attribute) is StringAttr:
            return _string(attribute.data)
        if (known := self._texts.get(id(attribute))) is not None:
            return known[1]
        match attribute:
            case IntegerAttr() if attribute.type == i64:
                return f"{attribute.value.data} : i64"
            case IntegerAttr() if attribute.type == i1:
                return "true" if attribute.value.data else "false"
            case DenseArrayBase() if attribute.elt_type == i64:
                values = ", ".join(map(str, attribute.get_values()))
                return f"array<i64: {values}>" if values else "array<i64>"
            case UnitAttr():
                return ""
        if isinstance(attribute, TensorType) or is_layer_attr(attribute):
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


def _string(text: str) -> str:
    # Almost every text is of this kind, and most names of nodes are printed once.
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return _quoted(text.encode())


def _quoted(text: bytes) -> str:
    return f'"{_ESCAPED.sub(_escape, text).decode("ascii")}"'


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()
    return b"\\\\" if byte == b"\\" else b"\\%02X" % byte[0]


@lru_cache(maxsize=4096)
def _text(attribute: Attribute) -> str:
    if is_layer_attr(attribute):
        return f"[{', '.join([_string(name.data) for name in attribute.data])}]"
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
