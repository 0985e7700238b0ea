"""The forward pass as a sequence, and what would cross if it were cut at a place."""

from __future__ import annotations

from collections.abc import Sequence

from cgc.layers.graph import StepGraph


def sequence(graph: StepGraph, ops: frozenset[int]) -> list[int]:
    """Some ops in an order that follows from who reads whom alone, not from the order of the program.

    An op comes when its operands are there, and of these the one that took the most ops comes first
    (Sethi and Ullman 1970): an encoder is complete before its decoder begins, and little is alive at a time.

    Args:
        graph: the step.
        ops: the ops to order.
    """
    depth = _ancestor_counts(graph, ops)
    last = [op for op in sorted(ops) if not any(reader in ops for reader in graph.readers(op))]
    found: dict[int, None] = {}
    pending = [(op, False) for op in sorted(last, key=lambda op: (depth[op], -op))]
    while pending:
        op, is_ready = pending.pop()
        if op in found:
            continue
        if is_ready:
            found[op] = None
            continue
        pending.append((op, True))
        before = [near for near in graph.producers(op) if near in ops and near not in found]
        # The last one pushed comes first: of equals the first operand.
        before.reverse()
        pending += [(producer, False) for producer in sorted(before, key=depth.__getitem__)]
    return list(found)


def live_bytes(graph: StepGraph, order: Sequence[int]) -> list[int]:
    """For each place of a sequence, from before its first op to behind its last, the bytes that go on there.

    Small values go anywhere and do not count.
    """
    place = {op: index for index, op in enumerate(order)}
    changes = [0] * (len(order) + 1)
    for op, index in place.items():
        for value in graph.results[op]:
            readers = [place[user] for user in graph.users.get(value, ()) if user in place]
            if readers and not graph.is_small(value):
                changes[index + 1] += graph.size_bytes[value]
                changes[max(readers) + 1] -= graph.size_bytes[value]
    found, total = [], 0
    for change in changes:
        total += change
        found.append(total)
    return found


def _ancestor_counts(graph: StepGraph, ops: frozenset[int]) -> dict[int, int]:
    """Of each op the number of ops that it depends on, itself included."""
    above: dict[int, int] = {}
    for bit, op in enumerate(sorted(ops)):
        mask = 1 << bit
        for producer in graph.producers(op):
            mask |= above.get(producer, 0)
        above[op] = mask
    return {op: mask.bit_count() for op, mask in above.items()}
