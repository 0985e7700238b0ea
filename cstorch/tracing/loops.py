"""Loops over the places where a mask is true: `for expert in (counts > 0).nonzero(): ...`.

The number of iterations of such a loop depends on values, and a step has no such sizes. So the loop runs for
all places, and the in-place writes of its body are kept only where the mask is true. That is the same program
if the body only writes into tensors and assigns names that nothing reads later; other loops are refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from cstorch.errors import SelectionError
from cstorch.tracing.places import user_line
from cstorch.tracing.state import holders
from cstorch.tracing.statements import (
    asking_frame,
    names_assigned_in,
    nodes_at,
    position_of,
    read_after,
    span,
)

if TYPE_CHECKING:
    from cstorch.tracing.recording import Recording

MAX_PLACES = 1024  # each place adds the operations of the body to the step

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class UnrolledLoop:
    """The rows of a selection of places, as a `for` statement iterates over them.

    Args:
        rows: The place of each row, including those that do not count.
        mask: True for rows that count.
        recording: The recording of the step.

    Raises:
        SelectionError: no `for` statement iterates over them, or its body does more than write into tensors.
    """

    def __init__(self, rows: torch.Tensor, mask: torch.Tensor, recording: Recording) -> None:
        self._rows, self._mask, self._recording = rows, mask, recording
        frame = asking_frame()
        loop = None if frame is None else _loop_at(frame)
        if frame is None or loop is None or mask.size(0) > MAX_PLACES:
            raise SelectionError("unbind() of a selection", user_line())
        body = _Body(loop)
        function = next((node for node in nodes_at(frame) if isinstance(node, _FUNCTIONS)), None)
        problem = body.problem or read_after(function, loop, body.assigned)
        if problem:
            raise _loop_error(problem)
        self._frame, self._names = frame, body.written
        self._own: dict[int, Any] = {}
        self._number = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self._mask.size(0)):
            with torch._C.DisableTorchFunctionSubclass():
                kept = [(tensor, tensor.clone()) for tensor in self._targets()]
                row = self._rows.select(0, number)
            self._own = {id(tensor.base): tensor.base for tensor, _ in kept}
            self._number = number
            begin = len(self._recording.graph.nodes)
            self._recording.loops.append(self)
            yield row
            self._recording.loops.remove(self)
            end = len(self._recording.graph.nodes)
            with torch._C.DisableTorchFunctionSubclass():
                counts = self._mask.select(0, number)
                self._recording.bodies.append((range(begin, end), counts))
                for tensor, before in kept:
                    tensor.copy_(torch.where(counts, tensor.clone(), before))

    def _targets(self) -> list[Any]:
        """Return the tensors that the body writes into, each once."""
        found = {name: self._frame.f_locals.get(name) for name in self._names}
        for name, value in found.items():
            if not hasattr(value, "base"):
                raise _loop_error(f"writes into {name}, which is no tensor of the step")
        return list({id(value): value for value in found.values()}.values())

    def inside(self, place: int, size: int) -> int:
        """Return an index of a body that is within a dimension.

        Args:
            place: The index.
            size: Size of the dimension.
        """
        if -size <= place < size:
            return place
        # A body that runs for every place may use one that a tensor does not have: a router may have one more
        # expert, for tokens without any. A check of the step asserts that such a place does not count.
        with torch._C.DisableTorchFunctionSubclass():
            unused = torch.logical_not(self._mask.select(0, self._number))
        self._recording.checks.keep(unused, f"IndexError: index {place} is out of bounds for size {size}")
        return 0

    def observe(self, written: Iterable[Any], made: Iterable[Any]) -> None:
        """Observe an operation of the body.

        Args:
            written: Tensors that it writes into.
            made: Tensors that it makes, views of others not included.

        Raises:
            SelectionError: it writes into one that existed before, and that the statements do not name.
        """
        if any(id(tensor.base) not in self._own for tensor in written):
            raise _loop_error("writes into a tensor that it does not name, as the state of a layer")
        self._own.update((id(tensor.base), tensor.base) for tensor in made)


def keep_unused(recording: Recording) -> None:
    """Keep parameters, and their optimizer's state, unchanged in steps whose loops do not use them."""
    # In PyTorch the experts that get no token have no gradient, and optimizers skip those. Here their
    # gradient is zero, which momentum and weight decay would not skip.
    forward = recording.graph.nodes[: recording.num_forward_nodes]
    inside = {number for numbers, _ in recording.bodies for number in numbers}
    outside = {t.id for place, node in enumerate(forward) if place not in inside for t in node.tensors()}
    counts: dict[int, list[torch.Tensor]] = {}
    for numbers, count in recording.bodies:
        used = {t.id for node in recording.graph.nodes[numbers.start : numbers.stop] for t in node.tensors()}
        for number in used - outside:
            if isinstance(recording.initial_tensors.get(number), torch.nn.Parameter):
                counts.setdefault(number, []).append(count)
    numbers_of = {id(tensor): number for number, tensor in recording.initial_tensors.items()}
    for number, found in counts.items():
        parameter = recording.initial_tensors[number]
        kept = [parameter, *_optimizer_state(parameter)]
        any_counts = torch.stack(found).any()
        for tensor in kept:
            before = recording.initial_elements(tensor, numbers_of.get(id(tensor)))
            if before is not None:
                tensor.copy_(torch.where(any_counts, tensor.clone(), before))


def _optimizer_state(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    for holder in holders():
        if isinstance(holder, torch.optim.Optimizer) and parameter in holder.state:
            yield from (x for x in holder.state[parameter].values() if isinstance(x, torch.Tensor))


def _loop_error(problem: str) -> SelectionError:
    return SelectionError(
        f"a loop over the places of a mask, whose body {problem}, expected one that only writes into tensors "
        "of its function, as x.index_add_(...) does",
        user_line(),
    )


def _loop_at(frame: FrameType) -> ast.For | None:
    """Return the `for` statement that starts in a frame."""
    position = position_of(frame)
    statement = next((node for node in nodes_at(frame) if isinstance(node, ast.stmt)), None)
    if position is None or not isinstance(statement, ast.For) or statement.orelse:
        return None
    # Python 3.11 gives the start of a loop the position of the whole statement.
    return statement if position in (span(statement), span(statement.iter)) else None


class _Body:
    """The body of a loop, and the reason why it cannot run for all places.

    Attributes:
        written: Names of tensors that it writes into.
        assigned: Names that it assigns.
        problem: The reason; "" if it can.
    """

    def __init__(self, loop: ast.For) -> None:
        self.written: dict[str, None] = {}
        self.assigned = names_assigned_in(loop.target)
        self.problem = ""
        every = {name for statement in loop.body for name in names_assigned_in(statement)} | self.assigned
        self._carried = every  # names without a value of this iteration so far
        self._run(loop.body, set(self.assigned))
        self.assigned = every

    def _run(self, statements: Sequence[ast.stmt], known: set[str]) -> None:
        """Analyze statements in order; `known` are the names that this iteration has assigned."""
        for statement in statements:
            self._step(statement, known)

    def _step(self, statement: ast.stmt, known: set[str]) -> None:
        if isinstance(statement, ast.If):
            self._read(statement.test, known)
            branches = [set(known), set(known)]
            self._run(statement.body, branches[0])
            self._run(statement.orelse, branches[1])
            falls_through = [
                not part or not isinstance(part[-1], ast.Continue)
                for part in (statement.body, statement.orelse)
            ]
            known |= set.intersection(
                *[branch for branch, falls in zip(branches, falls_through, strict=True) if falls] or branches
            )
        elif isinstance(statement, ast.With):
            for item in statement.items:
                self._read(item.context_expr, known)
            self._run(statement.body, known)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            self._read(statement.value, known)
            for target in targets:
                self._assign(target, known)
        elif isinstance(statement, ast.AugAssign):
            self._read(statement.value, known)
            self._write(statement.target, known)
        elif isinstance(statement, ast.Expr):
            self._read(statement.value, known)
            self._call(statement.value, known)
        elif not isinstance(statement, ast.Pass | ast.Continue | ast.Assert):
            self._refuse(f"has the statement `{ast.unparse(statement).splitlines()[0]}`")

    def _assign(self, target: ast.expr, known: set[str]) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._assign(part, known)
        elif isinstance(target, ast.Name):
            known.add(target.id)
        else:
            self._write(target, known)

    def _call(self, value: ast.expr, known: set[str]) -> None:
        """Analyze an expression statement: a method that writes in place, or a docstring."""
        if isinstance(value, ast.Constant):
            return
        method = value.func if isinstance(value, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr.endswith("_"):
            self._write(method.value, known)
        else:
            self._refuse(f"calls `{ast.unparse(value)}`")

    def _write(self, target: ast.expr, known: set[str]) -> None:
        while isinstance(target, ast.Subscript):
            self._read(target.slice, known)
            target = target.value
        if not isinstance(target, ast.Name):
            self._refuse(f"writes into `{ast.unparse(target)}`")
        elif target.id in self._carried - known:
            self._refuse(f"changes `{target.id}` of the iteration before")
        elif target.id not in known:
            self.written[target.id] = None

    def _read(self, value: ast.expr | None, known: set[str]) -> None:
        for node in ast.walk(value) if value is not None else ():
            if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await):
                self._refuse(f"has the expression `{ast.unparse(node)}`")
            elif isinstance(node, ast.Name) and node.id in self._carried and node.id not in known:
                self._refuse(f"reads `{node.id}` of the iteration before")

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem
