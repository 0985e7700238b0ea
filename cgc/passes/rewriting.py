"""The worklist driver of rewrites, and notification of their observers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue, SSAValues

from cgc.cirh.base import CirhOp

# The result of a rule for a single-result op: an equivalent value or op, or several ops of which the last one
# is equivalent and reads the others; None if the rule does not apply.
Replacement: TypeAlias = SSAValue | CirhOp | tuple[CirhOp, ...] | None


class Worklist:
    """Queue of ops to visit, without duplicates; new ops come first.

    Attributes:
        watch: is notified of rewrites.
    """

    def __init__(self) -> None:
        self.watch = current_watch()
        self._queue: deque[CirhOp] = deque()
        self._known: set[CirhOp] = set()

    def push(self, op: Operation) -> None:
        """Add a CIRH op unless it is in the queue; ignore other ops."""
        if isinstance(op, CirhOp) and op not in self._known:
            self._known.add(op)
            self._queue.append(op)

    def push_next(self, op: CirhOp) -> None:
        """Add a new op, to be visited before all others."""
        self._known.add(op)
        self._queue.appendleft(op)

    def push_users(self, value: SSAValue) -> None:
        """Add all ops that read a value."""
        for use in value.uses:
            self.push(use.operation)

    def pop(self) -> CirhOp | None:
        """Return the next op that is still part of a module; None at the end."""
        while self._queue:
            op = self._queue.popleft()
            self._known.discard(op)
            if op.parent is not None:
                return op
        return None


def rewrite_greedily(module: ModuleOp, rule: Callable[[CirhOp], Replacement]) -> None:
    """Apply a rule to every op, then to new ops and their users, until nothing changes.

    New ops take the position and the origin of the op that they replace. Ops that only replaced ops read are
    removed with them; ops that never had users are not.
    """
    worklist = Worklist()
    for op in module.walk():
        worklist.push(op)
    while (current := worklist.pop()) is not None:
        replacement = rule(current)
        if replacement is not None:
            replace_op(current, replacement, worklist)


def replace_op(op: CirhOp, replacement: SSAValue | CirhOp | tuple[CirhOp, ...], worklist: Worklist) -> None:
    """Replace a single-result op, and push the affected ops on the worklist."""
    if isinstance(replacement, CirhOp):
        replacement = (replacement,)
    if worklist.watch is not None:
        new_ops = replacement if isinstance(replacement, tuple) else ()
        worklist.watch.record_rewrite(_ops_seen(op, replacement), new_ops)
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


def _ops_seen(op: CirhOp, replacement: SSAValue | tuple[CirhOp, ...]) -> list[Operation]:
    """Return the ops that a rule may have seen: the op, and its operands that the replacement does not read.

    Rules look through ops that only move elements, so the operands of such ops are included. An operand that
    becomes the replacement itself may have been seen as well.
    """
    found: list[Operation] = [op]
    if isinstance(replacement, tuple):
        inputs = {operand for new_op in replacement for operand in new_op.operand_values}
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
    """Replace all uses of a value."""
    # xDSL's `replace_all_uses_with` is slow if one op reads a thousand values.
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
    """Return True if any result of an op is used."""
    return any(result.first_use is not None for result in op.results)


def drop(op: Operation) -> None:
    """Remove an op without users from its block, and its uses of operands."""
    if op.parent is not None:
        op.parent.detach_op(op)
    op.drop_all_references()


def erase_unused(unused: Iterable[Operation]) -> None:
    """Erase ops whose results are unused, and ops that only these read."""
    pending = list(unused)
    while pending:
        op = pending.pop()
        if op.parent is None or is_read(op):
            continue
        pending += [operand.op for operand in op.operands if isinstance(operand, OpResult)]
        drop(op)


class Watch(Protocol):
    """An observer of the passes of `cgc.passes` that rewrite ops."""

    def record_rewrite(self, read: Iterable[Operation], created: Iterable[Operation]) -> None:
        """Record that a rewrite replaced ops; some of those that it read may be removed.

        Args:
            read: ops that the rewrite has looked at, before anything is changed.
            created: the new ops, if any; they need not be complete yet.
        """
        ...

    def record_merge(self, op: CirhOp, kept: CirhOp) -> None:
        """Record that an op is removed because another one computes the same."""
        ...


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def notify_watch(watch: Watch) -> Iterator[None]:
    """Notify an observer of all rewrites in the block."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def current_watch() -> Watch | None:
    """Return the observer of passes, or None."""
    return _WATCH.get()
