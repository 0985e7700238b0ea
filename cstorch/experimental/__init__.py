"""Experimental names of the original."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import cstorch.hooks as listener
from cstorch.program import Program
from cstorch.utils.helpers import make_param_filter

if TYPE_CHECKING:
    from cstorch.experimental.implicit_loops import (
        get_loop_iteration_slice,
        run_implicit_autoregressive_loop,
        start_implicit_loop,
        update_implicit_loop,
    )

__all__ = [
    "Compression",
    "get_loop_iteration_slice",
    "listener",
    "run_implicit_autoregressive_loop",
    "start_implicit_loop",
    "update_implicit_loop",
]

log = logging.getLogger("cstorch")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cstorch.experimental import implicit_loops  # the compiler, which workers do not load

    return getattr(implicit_loops, name)


class Compression:
    """Chooses a format in which the original's system keeps parameters: `model.apply(Compression(...))`.

    The system of this toolkit keeps parameters unchanged, which is logged.

    Args:
        format: Name of the format, such as "mx8-e3m4".
        param_filter: Names of parameters with wildcards.
    """

    def __init__(self, format: str, param_filter: str | list[str]) -> None:  # noqa: A002 - the original's name
        self.format, self.param_filter = format, param_filter
        self._chooses = make_param_filter(param_filter)

    def __call__(self, module: nn.Module) -> None:
        """Apply it to one module, as `nn.Module.apply` asks for."""
        self.apply(module)

    def apply(self, module: nn.Module) -> None:
        """Take the parameters and buffers of a module whose names match."""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if self._chooses(name, tensor):
                self.annotate(tensor)

    def annotate(self, tensor: torch.Tensor) -> None:
        """Take one tensor."""
        message = "weights are not compressed here; the format %s has no effect"
        Program.current().log_once(log, logging.INFO, message, self.format)

    def __repr__(self) -> str:
        return f"Compression(format={self.format!r}, param_filter={self.param_filter!r})"
