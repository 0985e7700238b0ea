"""Branches for empty selections: `if rows.numel() == 0: continue`, `if mask.any(): y[mask] += f(x[mask])`.

While a step is recorded nobody knows whether a selection is empty. Where a branch guards nothing but writes
into the selected rows, the guarded statements do nothing for an empty one, so they may run in any case.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cstorch.tracing.unrolled import read_after, stored_names

_ANY = r"(torch\.any\((?P<a>\w+)\)|(?P<b>\w+)\.any\(\))"
_COUNT = r"(?P<c>\w+)\.(sum|count_nonzero)\(\)"
_ROWS = r"((?P<rows>\w+)\.(numel\(\)|size\(0\)|shape\[0\])|len\((?P<listed>\w+)\))"
_EMPTY = re.compile(f"not {_ANY}|{_COUNT} == 0|{_ROWS} == 0")
_FULL = re.compile(f"{_ANY}|({_COUNT}|{_ROWS}) (>|!=) 0")


@dataclass(frozen=True)
class Guarded:
    """Statements that run for a selection that is not empty.

    Attributes:
        truth: The condition with which they run.
        first: Their first line.
        last: Their last line.
    """

    truth: bool
    first: int
    last: int


def guarded_by(statement: ast.If, around: Sequence[ast.AST], values: Mapping[str, Any]) -> Guarded | None:
    """Return the statements that an `if` without `else` guards against an empty selection; None for others.

    Args:
        statement: The `if`.
        around: The statements and expressions around it, the innermost first.
        values: Of the names of the program.
    """
    test = ast.unparse(statement.test)
    function = next((node for node in around if isinstance(node, _FUNCTIONS)), None)
    loop = next((node for node in around if isinstance(node, ast.For) and statement in node.body), None)
    inside: ast.stmt = statement
    if (match := _FULL.fullmatch(test)) is not None:
        before: Sequence[ast.stmt] = ()
        statements, truth = statement.body, True
    elif (
        (match := _EMPTY.fullmatch(test)) is not None and loop and isinstance(statement.body[0], ast.Continue)
    ):
        place = loop.body.index(statement)
        before, statements, inside, truth = loop.body[:place], loop.body[place + 1 :], loop, False
    else:
        return None
    kind, index = next((kind, name) for kind, name in match.groupdict().items() if name is not None)
    if kind not in ("rows", "listed") and getattr(values.get(index), "dtype", None) is not torch.bool:
        return None  # of places `any` says that one is not 0, and not that there are some
    names = {name for part in statements for name in stored_names(part)}
    if (
        not _write_rows(statements, index, function)
        or _read(before, names)
        or read_after(function, inside, names)
    ):
        return None
    return Guarded(truth, statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno)


def _read(statements: Sequence[ast.stmt], names: set[str]) -> bool:
    """Return True if statements read one of the names."""
    return any(
        isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        for statement in statements
        for node in ast.walk(statement)
    )


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _write_rows(statements: Sequence[ast.stmt], index: str, function: ast.AST | None) -> bool:
    """Return True if statements only assign names and write into rows that an index selects."""
    indices = {index}
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign) and index in (together := stored_names(node)):
            indices |= together  # `rows, columns = torch.where(mask)` select together
    return bool(statements) and all(_writes(statement, indices) for statement in statements)


def _writes(statement: ast.stmt, indices: set[str]) -> bool:
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return all(not isinstance(target, ast.Attribute) and _selects(target, indices) for target in targets)
    if isinstance(statement, ast.If):
        return all(_writes(part, indices) for part in (*statement.body, *statement.orelse))
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Subscript) and _selects(statement.target, indices)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith("index_")
    ):
        return any(isinstance(argument, ast.Name) and argument.id in indices for argument in call.args)
    return False


def _selects(target: ast.expr, indices: set[str]) -> bool:
    """Return True if an assignment changes a name only, or rows of a tensor that an index selects."""
    if not isinstance(target, ast.Subscript):
        return all(isinstance(node, ast.Name | ast.Tuple | ast.expr_context) for node in ast.walk(target))
    return any(isinstance(node, ast.Name) and node.id in indices for node in ast.walk(target.slice))
