"""The origin of an operation in a step: the module that calls it, and the line of the user's program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from cs_toolkit.source_files import is_user_file, library_file

DEBUG_NAME = "_cstorch_debug_name"
"""Attribute of modules that are part of no compiled model, with the name that a program gives them."""


class Place(NamedTuple):
    """The origin of an operation.

    Attributes:
        layer: path of a module.
        source: "file:line" of the user's program.
        half: the 16-bit format of the autocast around it; None outside of one.
        library: "package/file:line" of the library that the program calls there; None if it calls none.
    """

    layer: tuple[str, ...]
    source: str | None
    half: str | None
    library: str | None


@dataclass
class Places:
    """Tracks the modules that a step runs through; a gradient has the origin of its forward operation."""

    # Autograd numbers the operations of a forward pass, and its backward nodes know their numbers.

    _names: dict[int, str] = field(default_factory=dict)
    _path: list[str] = field(default_factory=list)
    _of_sequence: dict[int, Place] = field(default_factory=dict)
    _halves: list[str | None] = field(default_factory=list)
    _scope: str | None = None

    def name_modules(self, model: nn.Module) -> None:
        """Name the modules of a model as its parameters are named."""
        for name, module in model.named_modules():
            self._names.setdefault(id(module), name)

    @contextmanager
    def following_modules(self) -> Iterator[None]:
        """Track calls of modules in the body."""
        hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._path.clear()
            self._of_sequence.clear()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Put operations of the body into a layer of this name, below the module that runs."""
        self._path.append(".".join([*self._path[-1:], name]).strip("."))
        try:
            yield
        finally:
            self._path.pop()

    def set_scope(self, name: str | None) -> None:
        """Name the following operations after a scope instead of their module, until None is set."""
        self._scope = name

    def enter_half(self, half: str | None) -> None:
        """Compute the following operations in a 16-bit format; None means float32."""
        self._halves.append(half)

    def leave_half(self) -> None:
        """End the last `enter_half`."""
        self._halves.pop()

    def computes_half(self, outside: bool) -> bool:
        """Return True if the following operations are computed in a 16-bit format.

        Args:
            outside: The answer outside of an autocast.
        """
        return self._halves[-1] is not None if self._halves else outside

    def here(self) -> Place:
        """Return the origin of the operation that runs now."""
        node = torch._C._current_autograd_node()
        if node is not None:
            found = self._of_sequence.get(node._sequence_nr())
            if found is not None:
                return found
        source, library = _lines()
        if node is not None:
            return Place((), source, None, library)
        place = Place(self._layer(), source, self._halves[-1] if self._halves else None, library)
        if torch.is_grad_enabled():
            self._of_sequence[torch.autograd._get_sequence_nr() - 1] = place
        return place

    def _layer(self) -> tuple[str, ...]:
        if self._scope is not None:
            return tuple(self._scope.split("."))
        return tuple(part for part in self._path[-1].split(".") if part) if self._path else ()

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(id(module), getattr(module, DEBUG_NAME, None))
        self._path.append(name if name is not None else (self._path[-1] if self._path else ""))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._path:
            self._path.pop()


def user_line() -> str | None:
    """Return `file:line` of the innermost frame of the user's program, and of a library that it calls."""
    source, library = _lines()
    return f"{source} (in {library})" if source is not None and library is not None else source


def _lines() -> tuple[str | None, str | None]:
    """Return the innermost line of the user's program and, further in, of a library other than PyTorch."""
    frame: FrameType | None = sys._getframe(1)
    library: str | None = None
    while frame is not None:
        path = frame.f_code.co_filename
        if is_user_file(path):
            return f"{path}:{frame.f_lineno}", library
        if library is None:
            file = library_file(path)
            library = None if file is None else f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None, library
