"""Contexts that name or tune a part of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from cstorch.announcing import announce_unused
from cstorch.tracing.device import current_recording
from cstorch.tracing.places import DEBUG_NAME


@contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Names the operations of the body in reports and errors, below the module that runs."""
    recording = current_recording()
    if recording is None:
        yield
        return
    with recording.places.inside(name):
        yield


def add_debug_name(module: nn.Module, root_name: str = "") -> None:
    """Names the operations of a module and of those in it, where it is part of no compiled model, as a loss.

    Args:
        module: the module.
        root_name: its own name, which those in it begin with.
    """
    for path, part in module.named_modules(prefix=root_name):
        object.__setattr__(part, DEBUG_NAME, path)


_level = [0]


@contextmanager
def pol(level: int) -> Iterator[None]:
    """A level of the original's optimization of precision, 0 to 2; without effect here."""
    announce_unused("pol()", {"level": level})
    before, _level[0] = _level[0], level
    try:
        yield
    finally:
        _level[0] = before


def current_pol() -> int:
    """The level of `pol` around the call; 0 outside of one."""
    return _level[0]
