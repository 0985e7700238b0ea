"""The worklist on which op-by-op rewrites run until none applies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue, SSAValues

from cgc.cirh.base import CirhOp

Replacement: TypeAlias = SSAValue | CirhOp | tuple[CirhOp, ...] | None
"""What a rule returns for a single-result op: a value or an op that computes the same, or several ops of
which the last one does and the others are its operands; None where the rule does not apply."""


class Worklist:
    """Ops that are still to be looked at, each once at a time, in their order; new ones are next.

    Attributes:
        watch: is told of rewrites.
    """

    def __init__(self) -> None:
        self.watch = current_watch()
        self._waiting: deque[CirhOp] = deque()
        self._known: set[CirhOp] = set()

    def push(self, op: Operation) -> None:
        """Adds an op of CIRH unless it waits already; others are passed over."""
        if isinstance(op, CirhOp) and op not in self._known:
            self._known.add(op)
            self._waiting.append(op)

    def push_next(self, op: CirhOp) -> None:
        """Adds a new op, which is looked at before all others."""
        self._known.add(op)
        self._waiting.appendleft(op)

    def push_users(self, value: SSAValue) -> None:
        """Adds all ops that read a value."""
        for use in value.uses:
            self.push(use.operation)

    def pop(self) -> CirhOp | None:
        """The next op that is still part of a module; None at the end."""
        while self._waiting:
            op = self._waiting.popleft()
            self._known.discard(op)
            if op.parent is not None:
                return op
        return None


def rewrite_greedily(module: ModuleOp, rule: Callable[[CirhOp], Replacement]) -> None:
    """Applies a rule to every op, then to what it has made and to the users of that, until nothing changes.

    New ops stand in the place of the replaced one and come from where it does. What only the replaced
    ones have read goes with them; ops that nothing reads from the start stay.
    """
    worklist = Worklist()
    for op in module.walk():
        worklist.push(op)
    while (current := worklist.pop()) is not None:
        replacement = rule(current)
        if replacement is not None:
            replace_op(current, replacement, worklist)


def replace_op(op: CirhOp, replacement: SSAValue | CirhOp | tuple[CirhOp, ...], worklist: Worklist) -> None:
    """Puts a replacement in the place of a single-result op, and whom that concerns on the worklist."""
    if isinstance(replacement, CirhOp):
        replacement = (replacement,)
    if worklist.watch is not None:
        made = replacement if isinstance(replacement, tuple) else ()
        worklist.watch.rewritten(_looked_at(op, replacement), made)
    if isinstance(replacement, tuple):
        block = op.parent_block()
        assert block is not None, "ops on the worklist are part of a block"
        for new in replacement:
            new.take_origin(op)
            worklist.push_next(new)
        block.insert_ops_before(replacement, op)
        replacement = replacement[-1].results[0]
    worklist.push_users(op.results[0])
    replace_uses(op.results[0], replacement)
    erase_unused([op])


def _looked_at(op: CirhOp, replacement: SSAValue | tuple[CirhOp, ...]) -> list[Operation]:
    """What a rule may have seen: an op, and those that it reads and that what takes its place does not.

    Of what such an op alone is made of, too: rules look through ops that only move elements. An operand that
    takes the place of the op may have been seen as well.
    """
    found: list[Operation] = [op]
    if isinstance(replacement, tuple):
        inputs = {operand for made in replacement for operand in made.operand_values}
    else:
        inputs = {replacement}
        if isinstance(replacement, OpResult) and replacement in op.operand_values:
            found.append(replacement.op)
    pending = list(op.operand_values)
    while pending:
        value = pending.pop()
        if isinstance(value, OpResult) and value not in inputs:
            found.append(value.op)
            if len(value.op.operands) == 1:
                pending.append(value.op.operands[0])
    return found


def replace_uses(old: SSAValue, new: SSAValue) -> None:
    """As xDSL's `old.replace_all_uses_with(new)`, which takes long where one op reads a thousand values."""
    if new is old:
        return
    for use in tuple(old.uses):
        old.remove_use(use)
        new.add_use(use)
        operands = list(use.operation._operands)
        operands[use.index] = new
        use.operation._operands = SSAValues(operands)
    if new.name_hint is None:
        new.name_hint = old.name_hint


def is_read(op: Operation) -> bool:
    """Return whether anybody reads a result of an op."""
    return any(result.first_use is not None for result in op.results)


def drop(op: Operation) -> None:
    """Takes an op whose results nobody reads out of its block for good."""
    if op.parent is not None:
        op.parent.detach_op(op)
    op.drop_all_references()


def erase_unused(unused: Iterable[Operation]) -> None:
    """Erases ops whose results nothing reads any more, and those that only they have read."""
    waiting = list(unused)
    while waiting:
        op = waiting.pop()
        if op.parent is None or is_read(op):
            continue
        waiting += [operand.op for operand in op.operands if isinstance(operand, OpResult)]
        drop(op)


class Watch(Protocol):
    """Is told what the passes of `cgc.passes` that rewrite ops do."""

    def rewritten(self, seen: Iterable[Operation], made: Iterable[Operation]) -> None:
        """Ops, some of which go, have become others.

        Args:
            seen: those that the rewrite has looked at, before anything is changed.
            made: the new ones, if any; they need not be complete yet.
        """
        ...

    def merged(self, op: CirhOp, kept: CirhOp) -> None:
        """An op goes because another one computes the same."""
        ...


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Passes that run in the block tell what they do."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def current_watch() -> Watch | None:
    """Who is told what passes do, if anybody is."""
    return _WATCH.get()
