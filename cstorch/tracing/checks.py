"""Checks of values in a program: `assert (labels < n).all()`, `if y.max() >= n: raise ValueError(...)`.

While a step is recorded its tensors have no values, so the branch that such a statement takes is not known.
But only one branch continues without an error. The step is recorded on that one and outputs the condition,
and the run ends with the program's own error at the first step where it does not hold.

Some other statements compute the same on one branch in any case, as with a mask that may hide nothing, or
with a selection that may be empty. And a library that asks for a rare case, as in `flag = mask.any().item()`,
is recorded without it, which is checked in every step too. Users can write their programs without the
question, so only libraries get that answer.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias

import torch

from cs_toolkit.source_files import library_file
from cstorch.errors import TensorReadError
from cstorch.tracing.statements import (
    asking_frame,
    names_assigned_in,
    nodes_at,
    position_of,
    read_after,
    span,
)

UNKNOWN = "(a value of the step)"
"""The value of a tensor in a message that is formatted while the step is recorded."""

_CANDIDATES = (0, 1, -1, 0.5, 2**31 - 1, -(2**31))
"""Numbers that a program may get for a tensor; it gets the first for which its check holds."""

_MAX_UNKNOWN = 8

Names: TypeAlias = Mapping[str, Any]

_JOINING = {"all": "and", "any": "or"}

# `if not mask.any(): mask = None` and `if not torch.isfinite(x).all(): x = torch.clamp(x, ...)`
_DROPPED = re.compile(r"(not )?(?P<mask>\w+)\.(any|all)\(\)")
_NOT_FINITE = re.compile(r"torch\.(isfinite|isinf)\((?P<name>\w+)\)\.(all|any)\(\)")

# Conditions for a selection that is empty, and for one that is not.
_ANY = r"(torch\.any\((?P<a>\w+)\)|(?P<b>\w+)\.any\(\))"
_COUNT = r"(?P<c>\w+)\.(sum|count_nonzero)\(\)"
_ROWS = r"((?P<rows>\w+)\.(numel\(\)|size\(0\)|shape\[0\])|len\((?P<listed>\w+)\))"
_EMPTY = re.compile(f"not {_ANY}|{_COUNT} == 0|{_ROWS} == 0")
_FULL = re.compile(f"{_ANY}|({_COUNT}|{_ROWS}) (>|!=) 0")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Checks:
    """Answers a program that asks for the value of a tensor in a statement with one possible branch.

    Args:
        keep: gets a bool tensor of the device that must hold in every step, and the error if it does not, as
            text. It is called whenever such a statement is recorded.
        guard: gets statements that run although a selection may be empty, their frame, and a bool tensor of
            the device, True if it is not empty.

    Attributes:
        evaluating: True while an expression of the program is evaluated to analyze its condition.
    """

    keep: Callable[[torch.Tensor, str], None]
    guard: Callable[[Guarded, FrameType, torch.Tensor], None]
    evaluating: bool = field(default=False, init=False)
    _answers: dict[tuple[int, ast.stmt], _Answers] = field(default_factory=dict)

    def answer(self, method: str, tensor: torch.Tensor) -> Any:
        """Answer a method of a tensor without a value.

        Args:
            method: "__bool__", "item", "__int__", "__float__" or "__format__".
            tensor: the tensor that the program asks.

        Returns:
            NotImplemented if the program does not ask for a check.
        """
        if self.evaluating:
            return tensor if method == "item" else NotImplemented
        frame = asking_frame()
        if frame is None or tensor.numel() != 1:
            return NotImplemented
        if method == "__format__":
            return UNKNOWN if _is_message(frame) else NotImplemented
        statement = _find_statement(frame)
        if statement is None:
            return self._assume_absent(frame, tensor) if method == "item" else NotImplemented
        if method == "item":
            return tensor
        key = id(frame), statement
        answers = self._answers.get(key)
        if answers is None or not answers.includes(frame.f_lasti):
            answers = self._answers[key] = self._decide(frame, statement, tensor, method != "__bool__")
        return answers.next(frame.f_lasti)

    def _decide(
        self, frame: FrameType, statement: ast.Assert | ast.If, tensor: torch.Tensor, as_number: bool
    ) -> _Answers:
        """Choose the branch of a statement that starts to run, and keep its check."""
        around = list(nodes_at(frame))
        usual = _usual_truth(statement, around, frame.f_locals)
        raises = isinstance(statement, ast.Assert) or _raises(statement.orelse)
        wanted = raises if usual is None else usual
        names = {**frame.f_globals, **frame.f_locals}
        with self._evaluation():
            test = _Numbers(names, None).visit(_copy_expression(statement.test))
            condition = _build_condition(test, names, None if as_number or _is_joined(test) else tensor)
            guesses = condition.find_answers(wanted)
            number = _find_number(statement.test, names, wanted) if as_number else None
            if guesses is None or number is NotImplemented:
                return _Answers([], NotImplemented)
            truth = condition.truth()
            if isinstance(truth, torch.Tensor) and usual is None:
                error = f"{_describe_error(statement, names)}; it checks `{ast.unparse(statement.test)}`"
                self.keep(truth if wanted else truth.logical_not(), error)
            elif isinstance(truth, torch.Tensor) and isinstance(statement, ast.If):
                guarded = find_guarded(statement, around, frame.f_locals)
                if guarded is not None:
                    self.guard(guarded, frame, truth if guarded.truth else truth.logical_not())
        return _Answers([] if as_number else list(guesses), number)

    def _assume_absent(self, frame: FrameType, tensor: torch.Tensor) -> Any:
        """Answer False if a library looks for a rare case, and check that; NotImplemented otherwise."""
        asked, given = itertools.islice(itertools.chain(nodes_at(frame), (None, None)), 2)
        text = ast.unparse(asked).removesuffix(".item()") if isinstance(asked, ast.Call) else ""
        found = tensor.dtype == torch.bool and text.endswith(".any()") and isinstance(given, ast.Assign)
        if not found or library_file(frame.f_code.co_filename) is None:
            return NotImplemented
        error = (
            f"`{text}` is true in a batch, expected batches where it is false: the library takes another way"
        )
        self.keep(tensor.logical_not(), f"ValueError: {error} then, and a step is recorded once")
        return False

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Evaluate expressions of the program in the body: tensors without values are not answered for."""
        self.evaluating = True
        try:
            with torch.no_grad():
                yield
        finally:
            self.evaluating = False


@dataclass
class _Answers:
    """The answers to one execution of a statement.

    Attributes:
        left: remaining bools, in the order in which it will ask.
        number: the answer to questions for a number.
    """

    left: list[bool]
    number: Any
    _last: int = -1

    def includes(self, instruction: int) -> bool:
        """Return True if a question belongs to the same execution."""
        return instruction > self._last if self.number is not None else bool(self.left)

    def next(self, instruction: int) -> Any:
        """Return the next answer."""
        self._last = instruction
        return self.left.pop(0) if self.left else self.number


# Conditions


@dataclass(frozen=True)
class _Condition:
    """A condition of Python: a value, or conditions joined by an operator.

    Attributes:
        word: "not", "and" or "or"; None for a value.
        parts: the operands of the word.
        value: an object that Python converts to a bool.
    """

    word: str | None
    parts: Sequence[_Condition] = ()
    value: Any = None

    def try_value(self) -> bool | None:
        """Return the truth of the value; None if only a step knows it."""
        try:
            return bool(self.value)
        except TensorReadError:
            return None

    def count_unknown(self) -> int:
        """Return the number of truths that only a step knows."""
        return (
            sum(part.count_unknown() for part in self.parts) if self.word else int(self.try_value() is None)
        )

    def evaluate(self, guesses: Iterator[bool]) -> bool:
        """Evaluate it with short-circuiting, as Python does, with a guess for each unknown truth."""
        if self.word is None:
            known = self.try_value()
            return next(guesses) if known is None else known
        found = (part.evaluate(guesses) for part in self.parts)
        return not next(found) if self.word == "not" else all(found) if self.word == "and" else any(found)

    def find_answers(self, wanted: bool) -> Sequence[bool] | None:
        """Return answers, in the order of Python's questions, that make it as wanted; None if none do."""
        count = self.count_unknown()
        uniform = [(truth,) * count for truth in (True, False)]
        others = itertools.product((True, False), repeat=count) if count <= _MAX_UNKNOWN else ()
        for guess in itertools.chain(uniform, others):
            left = iter(guess)
            if self.evaluate(left) == wanted:
                return guess[: count - len(list(left))]
        return None

    def truth(self) -> torch.Tensor | bool:
        """Return its truth: a tensor of the device if only a step knows it."""
        if self.word is None:
            known = self.try_value()
            return self.value.reshape(()).to(torch.bool) if known is None else known
        if self.word == "not":
            return _invert(self.parts[0].truth())
        if self.word == "or":
            return _invert(_Condition("and", [_Condition("not", [part]) for part in self.parts]).truth())
        found: torch.Tensor | bool = True
        for one in (part.truth() for part in self.parts):
            if isinstance(found, torch.Tensor) and isinstance(one, torch.Tensor):
                found = found.logical_and(one)
            elif found is False or one is False:
                return False
            else:
                found = found if one is True else one
        return found


def _invert(truth: torch.Tensor | bool) -> torch.Tensor | bool:
    return truth.logical_not() if isinstance(truth, torch.Tensor) else not truth


def _build_condition(node: ast.expr, names: Names, asked: torch.Tensor | None) -> _Condition:
    """Return the condition of an expression; `asked` is its only value if that is given."""

    def join(word: str, nodes: Sequence[ast.expr]) -> _Condition:
        return _Condition(word, [_build_condition(part, names, asked) for part in nodes])

    if isinstance(node, ast.BoolOp):
        return join("and" if isinstance(node.op, ast.And) else "or", node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return join("not", [node.operand])
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        sides = [node.left, *node.comparators]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        return join("and", [ast.Compare(left, [op], [right]) for left, op, right in pairs])
    called = _name_of_call(node)
    if called == "bool":
        return _build_condition(node.args[0], names, asked)  # type: ignore[attr-defined]
    if called in _JOINING:
        values = _evaluate(node.args[0], names)  # type: ignore[attr-defined]
        return _Condition(_JOINING[called], [_Condition(None, value=value) for value in values])
    return _Condition(None, value=_evaluate(node, names) if asked is None else asked)


def _name_of_call(node: ast.AST) -> str:
    """Return the name of a function that is called with one argument, such as `int`; "" for other nodes."""
    one = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1
    return node.func.id if one else ""  # type: ignore[attr-defined]


def _is_joined(node: ast.expr) -> bool:
    """Return True if a condition asks for several truths."""
    return any(
        isinstance(part, ast.BoolOp)
        or (isinstance(part, ast.Compare) and len(part.ops) > 1)
        or _name_of_call(part) in _JOINING
        for part in ast.walk(node)
    )


def _evaluate(node: ast.expr, names: Names) -> Any:
    whole = ast.fix_missing_locations(ast.Expression(node))
    return eval(compile(whole, "<check>", "eval"), dict(names))


# Numbers: a program that writes `if int(y.max()) >= n` gets one that the check holds for


class _Numbers(ast.NodeTransformer):
    """Replaces `int(x)` and `float(x)` by a number, or by x, if only a step knows x."""

    def __init__(self, names: Names, number: float | None) -> None:
        self._names, self._number = names, number

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return the replacement of a call."""
        if _name_of_call(node) in ("int", "float"):
            try:
                _evaluate(node, self._names)
            except TensorReadError:
                return node.args[0] if self._number is None else ast.Constant(self._number)
        return self.generic_visit(node)


def _find_number(test: ast.expr, names: Names, wanted: bool) -> Any:
    """Return a number for which a condition is as wanted; NotImplemented if there is none."""
    for number in _CANDIDATES:
        replaced = _Numbers(names, number).visit(_copy_expression(test))
        if _build_condition(replaced, names, None).find_answers(wanted) == ():
            return number
    return NotImplemented


def _copy_expression(test: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(test), mode="eval").body


# Statements


def _find_statement(frame: FrameType) -> ast.Assert | ast.If | None:
    """Return the statement whose condition a frame evaluates, if one of its branches is not possible."""
    position = position_of(frame)
    for node in nodes_at(frame):
        if isinstance(node, ast.Lambda | ast.IfExp | ast.While):
            return None
        if not isinstance(node, ast.Assert | ast.If):
            continue
        inside = position is not None and span(node.test)[0] <= position[0] <= span(node.test)[1]
        # Python 3.11 gives a jump of a compound condition the position of the whole statement.
        if not inside and position != span(node):
            return None
        if (
            isinstance(node, ast.Assert)
            or _raises(node.body) != _raises(node.orelse)
            or _usual_truth(node, list(nodes_at(frame)), frame.f_locals) is not None
        ):
            return node
        return None
    return None


def _usual_truth(statement: ast.stmt, around: Sequence[ast.AST], values: Names) -> bool | None:
    """Return the branch of a statement that gives the same result in any case; None if there is none.

    `if not mask.any(): mask = None` keeps the mask; `if not torch.isfinite(x).all(): x = torch.clamp(x, ...)`
    clamps, which changes no number in the range; `if rows.numel() == 0: continue` does not continue.
    """
    if not isinstance(statement, ast.If) or statement.orelse:
        return None
    test, body = ast.unparse(statement.test), [ast.unparse(part) for part in statement.body]
    mask = _DROPPED.fullmatch(test)
    if mask is not None and body == [f"{mask['mask']} = None"]:
        return False
    name = _NOT_FINITE.search(test)
    assigns = all(isinstance(part, ast.Assign) for part in statement.body)
    if name is not None and assigns and body[-1].startswith("{0} = torch.clamp({0}, ".format(name["name"])):
        return True
    guarded = find_guarded(statement, around, values)
    return None if guarded is None else guarded.truth


def _raises(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _is_message(frame: FrameType) -> bool:
    """Return True if a frame formats a message for a check, as in `check(condition, f"got {x}")`."""
    for node in nodes_at(frame):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            return "check" in name or "assert" in name
    return False


# Errors


def _describe_error(statement: ast.Assert | ast.If, names: Names) -> str:
    """Return class and message of the error that a statement raises."""
    if isinstance(statement, ast.Assert):
        return ": ".join(
            ["AssertionError", *([_format_message(statement.msg, names)] if statement.msg else [])]
        )
    body = statement.body if _raises(statement.body) else statement.orelse
    known = dict(names)
    for part in body[:-1]:
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            known[part.targets[0].id] = _format_message(part.value, known)
    raised = body[-1].exc  # type: ignore[attr-defined]
    if not isinstance(raised, ast.Call):
        return ast.unparse(raised) if raised is not None else "an error"
    return ": ".join([ast.unparse(raised.func), *(_format_message(part, known) for part in raised.args[:1])])


def _format_message(node: ast.expr, names: Names) -> str:
    """Return a message; expressions whose value only a step knows are shown as source."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_format_message(part, names) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _format_message(node.left, names) + _format_message(node.right, names)
    value = ast.JoinedStr([node]) if isinstance(node, ast.FormattedValue) else node
    try:
        return str(_evaluate(value, names))
    except Exception:  # whatever the program's own expression raises
        return ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)


@dataclass(frozen=True)
class Guarded:
    """Statements that run only if a selection is not empty.

    Attributes:
        truth: The value of the condition with which they run.
        first: Their first line.
        last: Their last line.
    """

    truth: bool
    first: int
    last: int


def find_guarded(statement: ast.If, around: Sequence[ast.AST], values: Mapping[str, Any]) -> Guarded | None:
    """Return the statements that an `if` without `else` skips for an empty selection; None for others.

    Args:
        statement: The `if`.
        around: The statements and expressions around it, the innermost first.
        values: Values by the names of the program.
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
        return None  # `any` of indices says that one is not 0, not that there are some
    names = {name for part in statements for name in names_assigned_in(part)}
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


def _write_rows(statements: Sequence[ast.stmt], index: str, function: ast.AST | None) -> bool:
    """Return True if statements only assign names and write into rows that an index selects."""
    indices = {index}
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign) and index in (together := names_assigned_in(node)):
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
