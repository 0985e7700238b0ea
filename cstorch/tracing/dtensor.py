"""Keeps DTensor, PyTorch's tensor on a mesh of devices, out of programs that do not use it.

At the first operation on a tensor of any subclass PyTorch imports `torch.distributed.tensor`, and SymPy with
it: up to 1.4 s of CPU time in every task of a job. It keeps the class that it finds there, and asks it about
every tensor of a subclass from then on.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

_NAME = "torch.distributed.tensor"


def keep_dtensor_out() -> None:
    """Let PyTorch keep a class that stands for DTensor, and asks DTensor once a program has imported it."""
    if _NAME in sys.modules:
        return
    module: Any = ModuleType(_NAME)
    module.DTensor = _LateDTensor
    sys.modules[_NAME] = module
    try:
        torch.Tensor._make_wrapper_subclass(_Probe, ()).detach()
    finally:
        del sys.modules[_NAME]


class _Late(type):
    """The class of DTensor's stand-in: whatever is asked of the stand-in is answered by DTensor."""

    def __instancecheck__(cls, tensor: object) -> bool:
        real = getattr(sys.modules.get(_NAME), "DTensor", cls)  # not there yet while the module is loaded
        return real is not cls and isinstance(tensor, real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(sys.modules[_NAME].DTensor, name)


class _LateDTensor(metaclass=_Late):
    pass


class _Probe(torch.Tensor):
    """A subclass with an operation, the first in the process, that PyTorch takes through Python."""

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0]
