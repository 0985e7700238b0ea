"""Writing for TensorBoard, and reading it back."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = ("SummaryReader", "SummaryWriter", "TensorDescriptor")


def __getattr__(name: str) -> Any:
    """Return a class, whose module imports TensorBoard."""
    if name not in _NAMES:
        raise AttributeError(f"module 'cstorch.utils.tensorboard' has no attribute {name!r}")
    return getattr(import_module("cstorch.utils.event_files"), name)
