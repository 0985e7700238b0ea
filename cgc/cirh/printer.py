"""xDSL's printer with its slow parts in one piece: a step of 4,000 ops prints in a third of the time.

xDSL writes a string letter by letter, and a type or a list piece by piece, each through `print`; a step has a
node name and a source line on every op, and a few hundred different types and layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from io import StringIO

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute
from xdsl.printer import Printer

from cgc.cirh.base import is_layer_attr

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

    def print_bytes_literal(self, bytestring: bytes) -> None:
        """Writes a string in quotes."""
        self.print_string(f'"{_ESCAPED.sub(_escape, bytestring).decode("ascii")}"')

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


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()
    return b"\\\\" if byte == b"\\" else b"\\%02X" % byte[0]


@lru_cache(maxsize=4096)
def _text(attribute: Attribute) -> str:
    out = StringIO()
    Printer(stream=out).print_attribute(attribute)
    return out.getvalue()
