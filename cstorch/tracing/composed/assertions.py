"""What PyTorch checks of values: assertions of a program, and arguments of distributions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from cstorch.errors import TensorReadError

_check_with_of_torch = torch._check_with
_MESSAGES = ("msg", "message")


def _assert(condition: Any, message: str) -> None:
    """`torch._assert`."""
    require(condition, AssertionError(message))


def _assert_async(condition: Any, message: str = "") -> None:
    """`torch._assert_async`."""
    require(condition, RuntimeError(message))


def _check_with(error_type: type[Exception], cond: Any, message: Any = None) -> None:
    """`torch._check_with`, which would import a library for symbols to ask whether True is True."""
    if isinstance(cond, torch.Tensor):
        _check_tensor_all_with(error_type, cond, message)
    elif cond is not True:
        _check_with_of_torch(error_type, cond, message)


def _check_tensor_all_with(error_type: type[Exception], cond: torch.Tensor, message: Any = None) -> None:
    """`torch._check_tensor_all_with`."""
    text = message() if callable(message) else message or _message_of_caller() or "a condition is not true"
    require(cond.all(), error_type(text))


def require(condition: Any, error: Exception) -> None:
    """Raises an error where a condition is not true; one that only a step knows becomes a check of it."""
    from cstorch.tracing.device import current_recording

    recording = current_recording()
    try:
        holds = bool(condition)
    except TensorReadError:
        if recording is None:
            raise
        recording.checks.keep(condition, ": ".join(filter(None, [type(error).__name__, str(error)])))
    else:
        if not holds:
            raise error


def _message_of_caller() -> str | None:
    """The message of a function that checks something and leaves it out while a compiler traces it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, torch.__file__):
        frame = frame.f_back
    found = (None if frame is None else frame.f_locals.get(name) for name in _MESSAGES)
    return next((text for text in found if isinstance(text, str)), None)


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Distributions do not check their arguments in the body, unless a program asks them to."""
    kind = torch.distributions.Distribution
    kept = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind._validate_args = kept


REPLACED: tuple[Callable[..., Any], ...] = (_assert, _assert_async, _check_tensor_all_with, _check_with)
