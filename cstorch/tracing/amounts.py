"""Numbers that only a step knows, where a program needs those of Python: `x.roll(int(n))`, `counts.tolist()`.

A function that takes such a number and has a result of a size that does not depend on it can be recorded. The
program gets a number that stands for the tensor, or a list of tensors, if the function is the one that it
calls with it; everywhere else the tensor cannot be read.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from cstorch.tracing.statements import asking_frame, nodes_at

_FIRST = 1 << 40
"""The numbers that stand for tensors begin here: no dimension is that large."""
_MOST_PARTS = 1024


@dataclass
class Amounts:
    """Answers a program that needs a number of a tensor for a function which can take the tensor."""

    _tensors: list[torch.Tensor] = field(default_factory=list)

    def answer(self, method: str, tensor: torch.Tensor) -> Any:
        """What the program gets from a method of a tensor without a value.

        Args:
            method: "item", "tolist", "__int__" or "__index__".
            tensor: Its tensor.

        Returns:
            NotImplemented where the program needs it for something else.
        """
        frame = asking_frame()
        if frame is None or tensor.is_floating_point() or tensor.dtype == torch.bool:
            return NotImplemented
        if method == "tolist":
            listed = tensor.dim() == 1 and tensor.numel() <= _MOST_PARTS and _is_kept(frame)
            return list(tensor.unbind()) if listed else NotImplemented
        if tensor.numel() != 1 or not _is_shift(frame):
            return NotImplemented
        if method == "item":
            return tensor
        self._tensors.append(tensor)
        return _FIRST + len(self._tensors) - 1

    def tensor_of(self, number: Any) -> Any:
        """The tensor that a number, or its negative, stands for; other numbers as they are."""
        if isinstance(number, torch.Tensor) or abs(number) < _FIRST:
            return number
        tensor = self._tensors[abs(number) - _FIRST]
        return tensor if number > 0 else -tensor


def _is_kept(frame: FrameType) -> bool:
    """Whether a list is given a name, or is an argument of `split`."""
    around = [node for node in nodes_at(frame) if not isinstance(node, ast.Tuple | ast.List)]
    if len(around) < 2 or not isinstance(around[0], ast.Call):
        return False
    return isinstance(around[1], ast.Assign) or _is_call_of(around[1], "split")


def _is_shift(frame: FrameType) -> bool:
    """Whether a number, or its negative, is an argument of `roll`."""
    for node in nodes_at(frame):
        if _is_call_of(node, "roll"):
            return True
        called = isinstance(node, ast.Call) and _name_called(node) in ("int", "item")
        if not called and not isinstance(node, ast.UnaryOp | ast.Tuple | ast.List):
            return False
    return False


def _is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _name_called(node) == name


def _name_called(node: ast.Call) -> str:
    """The last name of a function that is called, such as `roll` of `torch.roll`."""
    return ast.unparse(node.func).rpartition(".")[2]
