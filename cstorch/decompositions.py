"""Decompositions that a program registers for operations, which a recorded step runs instead of them."""

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
        op: An operation of `torch.ops`, with all overloads if none is named, or several operations.
        device: Backend whose steps use the rule: "CSX". On a CPU, PyTorch has its own rules.

    Raises:
        ValueError: The device is not CSX.
        TypeError: `op` is no operation.
    """
    if str(device).upper() != "CSX":
        raise ValueError(f"device is {device!r}, expected 'CSX': steps on a CPU run the operations of torch")
    operations = op if isinstance(op, list | tuple) else [op]
    overloads = [overload for one in operations for overload in _overloads(one)]

    def register(rule: Rule) -> Rule:
        Program.current().decompositions.update(dict.fromkeys(overloads, rule))
        return rule

    return register


def rule_of(operation: Any) -> Callable[..., Any] | None:
    """Return the registered rule of an operation; None if there is none, or while it is running."""
    program = Program.current()
    return None if operation in program.running_decompositions else program.decompositions.get(operation)


@contextmanager
def running_rule(operation: Any) -> Iterator[None]:
    """Suspend the rule of an operation within the body, because the rule may call the operation."""
    running = Program.current().running_decompositions
    running.append(operation)
    try:
        yield
    finally:
        running.pop()


def _overloads(op: Any) -> list[Any]:
    if isinstance(op, torch._ops.OpOverload):
        return [op]
    if isinstance(op, torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    raise TypeError(f"op is a {type(op).__name__}, expected an operation such as torch.ops.aten.relu.default")
