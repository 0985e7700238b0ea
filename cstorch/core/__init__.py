"""Annotations of operations, hooks around step functions, and modes of a run."""

from importlib import import_module
from typing import Any

import cstorch.hooks as compile  # noqa: A004 - the original's name
from cstorch.core import annotation, modes
from cstorch.core.annotation import name_scope

__all__ = ["annotation", "compile", "modes", "name_scope"]


def __getattr__(name: str) -> Any:
    """Import a module of the session API on first use."""
    if name not in ("appliance", "cb_model"):
        raise AttributeError(f"module 'cstorch.core' has no attribute {name!r}")
    return import_module(f"cstorch.v1.session.core.{name}")
