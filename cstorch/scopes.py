"""Contexts that name or tune a part of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from cstorch.compatibility import announce_unused
from cstorch.tracing.device import current_recording
from cstorch.tracing.places import DEBUG_NAME


@contextmanager
def name_scope(name: str, raw: bool = False) -> Iterator[None]:
    """Name the operations of the body in reports and errors, below the module that runs.

    Args:
        name: The name.
        raw: Taken for programs that give it: names are used as they are.
    """
    recording = current_recording()
    if recording is None:
        yield
        return
    with recording.places.inside(name):
        yield


def add_debug_name(module: nn.Module, root_name: str | None = None) -> None:
    """Names the operations of a module and of those in it, where it is part of no compiled model, as a loss.

    Args:
        module: the module.
        root_name: its own name, which those in it begin with.
    """
    for path, part in module.named_modules(prefix=root_name or ""):
        object.__setattr__(part, DEBUG_NAME, path)


def get_debug_name(module: nn.Module) -> str:
    """Return the name that `add_debug_name` gave a module; else one of its class and identity."""
    name: str | None = getattr(module, DEBUG_NAME, None)
    return f"{type(module).__name__}_{id(module):x}" if name is None else name


def set_debug_scope(name: str | None) -> None:
    """Name the operations that follow in the step, until another name or None is set."""
    recording = current_recording()
    if recording is not None:
        recording.places.set_scope(name)


_level = [0]


@contextmanager
def pol(
    level: int | None = None,
    bwd_level: int | None = None,
    enable_fwd: bool = True,
    enable_bwd: bool = True,
) -> Iterator[None]:
    """Set a level of the original's optimization of precision, 0 to 2; without effect here.

    A context, and a decorator of functions and modules: `pol(bwd_level=0)(self.head)(x)`.

    Args:
        level: The level.
        bwd_level: That of the backward pass; `level` where None.
        enable_fwd: It holds in the forward pass.
        enable_bwd: It holds in the backward pass.
    """
    announce_unused("pol()", {"level": level, "bwd_level": bwd_level})
    before = _level[0]
    if level is not None and enable_fwd:
        _level[0] = level
    try:
        yield
    finally:
        _level[0] = before


def current_pol() -> int:
    """The level of `pol` around the call; 0 outside of one."""
    return _level[0]
