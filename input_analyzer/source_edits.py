"""Edits of Python source at positions of its syntax tree."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO

# A line (from 1) and a column (from 0, in bytes), as in a syntax tree.
Position = tuple[int, int]


@dataclass(frozen=True)
class Edit:
    """A replacement of a part of a source file.

    Attributes:
        start: Where the part begins.
        end: Where it ends.
        text: The replacement.
    """

    start: Position
    end: Position
    text: str


def apply_edits(source: str, edits: Iterable[Edit]) -> str:
    """Return a source with edits that do not overlap; several at one place keep their order."""
    lines = [line.encode() for line in split_lines(source)]
    # From the end; of several edits at one place the last one first.
    for _, edit in sorted(enumerate(edits), key=lambda item: (item[1].start, item[0]), reverse=True):
        (first, begin), (last, end) = edit.start, edit.end
        while len(lines) < last:  # after the end of the last line
            lines.append(b"")
        head, tail = lines[first - 1][:begin], lines[last - 1][end:]
        lines[first - 1 : last] = [head + edit.text.encode() + tail]
    return b"".join(lines).decode()


def text_between(source: str, start: Position, end: Position, edits: Iterable[Edit] = ()) -> str:
    """Return a part of a source, with the edits that are inside of it."""
    inside = [edit for edit in edits if start <= edit.start and edit.end <= end]
    outside = [Edit((1, 0), start, ""), Edit(end, (len(split_lines(source)) + 1, 0), "")]
    return apply_edits(source, [outside[0], *inside, outside[1]])


def start_of(node: ast.expr | ast.stmt) -> Position:
    """Return where a node begins."""
    return node.lineno, node.col_offset


def end_of(node: ast.expr | ast.stmt) -> Position:
    """Return where a node ends."""
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def replace_node(node: ast.expr, text: str) -> Edit:
    """Replace an expression."""
    return Edit(start_of(node), end_of(node), text)


def end_of_object(call: ast.Call, source: str) -> Position | None:
    """Return where the object of a called method ends, after its parentheses; None if it is no method."""
    if not isinstance(call.func, ast.Attribute):
        return None
    end = end_of(call.func.value)
    # The syntax tree has no parentheses around the object of a method.
    dot = end_of(call.func)
    return max([end, *(place for place in closing_parentheses(source) if end < place <= dot)])


def append_argument(call: ast.Call, text: str, source: str) -> Edit | None:
    """Add an argument after the last one; None if that is a generator without its own parentheses."""
    given: list[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords)]
    close = (call.end_lineno or call.lineno, (call.end_col_offset or 1) - 1)
    if not given:
        return Edit(close, close, text)
    end = max(map(end_of, given))
    if end > close:
        return None
    # The syntax tree has no parentheses around an argument.
    end = max([end, *(place for place in closing_parentheses(source) if end < place <= close)])
    return Edit(end, end, f", {text}")


def closing_parentheses(source: str) -> Iterator[Position]:
    """Yield the positions after each closing parenthesis."""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.OP and token.string == ")":
            line, column = token.end
            yield line, len(token.line[:column].encode())


def split_lines(source: str) -> list[str]:
    """Split lines as Python does: a form feed ends no line."""
    return StringIO(source).readlines()
