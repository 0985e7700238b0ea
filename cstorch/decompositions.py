"""Rules that a program registers for operations: a recorded step runs the rule instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from cstorch.program import Program

Rule = TypeVar("Rule", bound=Callable[..., Any])


def register_decomposition(op: Any, device: str = "CSX") -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule of an operation.

    Args:
        op: An operation of `torch.ops`, all of its overloads where none is named, or several operations.
        device: Steps on which it is used: "CSX". On a CPU torch has its own rules.

    Raises:
        ValueError: The device is not CSX.
        TypeError: `op` is no operation.
    """
    if str(device).upper() != "CSX":
        raise ValueError(f"device is {device!r}, expected 'CSX': steps on a CPU run the operations of torch")
    overloads = [overload for one in (op if isinstance(op, list | tuple) else [op]) for overload in _all(one)]

    def register(rule: Rule) -> Rule:
        Program.current().decompositions.update(dict.fromkeys(overloads, rule))
        return rule

    return register


def rule_of(operation: Any) -> Callable[..., Any] | None:
    """Return the rule that a program has registered for an operation; None without one, and inside it."""
    program = Program.current()
    return None if operation in program.running_decompositions else program.decompositions.get(operation)


@contextmanager
def running_rule(operation: Any) -> Iterator[None]:
    """In the body the operation itself runs, because its rule may call it."""
    running = Program.current().running_decompositions
    running.append(operation)
    try:
        yield
    finally:
        running.pop()


def _all(op: Any) -> list[Any]:
    if isinstance(op, torch._ops.OpOverload):
        return [op]
    if isinstance(op, torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    raise TypeError(f"op is a {type(op).__name__}, expected an operation such as torch.ops.aten.relu.default")
