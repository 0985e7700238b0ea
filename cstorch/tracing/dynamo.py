"""Keeps Dynamo, PyTorch's compiler, out of programs that never use it.

PyTorch imports it to tell it which of its own functions it shall not compile, a second of CPU time in a
program that compiles nothing. Shape functions of `nn.Linear` and of softmax are among them. A function that
was called without Dynamo is not skipped by `torch.compile` later in the same process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


class _Absent(ModuleType):
    """Stands for Dynamo as long as nobody asks it for more than to skip a function."""

    def disable(self, function: Callable[..., Any], *arguments: object, **keywords: object) -> Any:
        """The function itself: nothing compiles it."""
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # asked of all modules; the path is for submodules
            raise AttributeError(name)
        self.leave()
        return getattr(import_module(_NAME), name)

    def leave(self) -> None:
        """Whoever imports Dynamo from now on gets it."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]


@contextmanager
def without_dynamo() -> Iterator[None]:
    """PyTorch's own functions do not import Dynamo in the body; whoever uses it there gets it."""
    if _NAME in sys.modules:
        yield
        return
    absent = sys.modules[_NAME] = _Absent(_NAME)
    try:
        yield
    finally:
        absent.leave()
