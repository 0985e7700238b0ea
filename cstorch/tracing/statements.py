"""The statement of a program that asks a tensor for its value, as its source has it."""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import TypeAlias

from cs_toolkit.source_files import toolkit_folders

Span: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of the first character of a node, and of the one after its last."""


def asking_frame() -> FrameType | None:
    """Return the innermost frame that is neither ours nor of PyTorch's class of tensors."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_skipped()):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1)
def _skipped() -> tuple[str, ...]:
    tensors = (sys.modules[name].__file__ for name in ("torch._tensor", "torch.overrides"))
    return (*(f"{folder}/" for folder in toolkit_folders()), *(file for file in tensors if file))


def span(node: ast.expr | ast.stmt) -> Span:
    """Return the first and the last place of a node in its file."""
    end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), end


def position_of(frame: FrameType) -> Span | None:
    """Return the place of the expression that a frame evaluates; None where Python does not know it."""
    found = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    line, end_line, column, end_column = found
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return (line, column), (end_line, end_column)


def nodes_at(frame: FrameType) -> Iterator[ast.AST]:
    """Yield the statements and expressions around what a frame evaluates, the innermost first."""
    position, tree = position_of(frame), _parsed(frame.f_code.co_filename)
    if position is None or tree is None:
        return
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt):
            begin, end = span(node)
            if begin <= position[0] and position[1] <= end:
                found.append(node)
    yield from reversed(found)


@lru_cache(maxsize=32)
def _parsed(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None
