"""The statement of a program that asks a tensor for its value: its source, and the names that it uses."""

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
"""Line and column of the first character of a node, and of the one after its end."""


def asking_frame() -> FrameType | None:
    """Return the innermost frame that is neither ours nor of PyTorch's tensor class."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_files_to_skip()):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1)
def _files_to_skip() -> tuple[str, ...]:
    tensors = (sys.modules[name].__file__ for name in ("torch._tensor", "torch.overrides"))
    return (*(f"{folder}/" for folder in toolkit_folders()), *(file for file in tensors if file))


def span(node: ast.expr | ast.stmt) -> Span:
    """Return begin and end of a node in its file."""
    end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), end


def position_of(frame: FrameType) -> Span | None:
    """Return the span of the expression that a frame evaluates; None if Python does not know it."""
    found = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    line, end_line, column, end_column = found
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return (line, column), (end_line, end_column)


def nodes_at(frame: FrameType) -> Iterator[ast.AST]:
    """Yield the expressions and statements that contain the one that a frame evaluates, innermost first."""
    position, tree = position_of(frame), _parse(frame.f_code.co_filename)
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
def _parse(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None


def names_assigned_in(node: ast.AST) -> set[str]:
    """Return the names that are assigned; `x += y` writes into x instead."""
    augmented = {id(part.target) for part in ast.walk(node) if isinstance(part, ast.AugAssign)}
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and id(part) not in augmented
    }


def read_after(function: ast.AST | None, statement: ast.stmt, names: set[str]) -> str:
    """Describe that a function reads a name after a statement that assigns it; "" if it does not."""
    inside = {id(node) for node in ast.walk(statement)}
    end = statement.end_lineno or statement.lineno
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.For | ast.While) and node is not statement and statement in ast.walk(node):
            end = 0  # the next iteration of an outer loop reads the names that this one left
    for node in ast.walk(function) if function is not None else ():
        if not isinstance(node, ast.Name) or node.id not in names or id(node) in inside:
            continue
        if isinstance(node.ctx, ast.Load) and node.lineno > end and not _is_assigned(function, end, node):
            return f"gives `{node.id}` a value that is read later"
    return ""


def _is_assigned(function: ast.AST | None, line: int, read: ast.Name) -> bool:
    """Return True if a statement of the function's block, after a line, assigns a name before it is read."""
    return any(
        line < statement.lineno and (statement.end_lineno or statement.lineno) < read.lineno
        for statement in getattr(function, "body", ())
        if isinstance(statement, ast.Assign) and read.id in names_assigned_in(statement)
    )
