"""Experimental names of the original."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn

from cstorch.errors import NotThereError
from cstorch.experimental import listener
from cstorch.utils.filters import make_param_filter

__all__ = [
    "Compression",
    "get_loop_iteration_slice",
    "listener",
    "run_implicit_autoregressive_loop",
    "start_implicit_loop",
    "update_implicit_loop",
]

log = logging.getLogger("cstorch")


class Compression:
    """Chooses a format in which the original's system keeps parameters: `model.apply(Compression(...))`.

    The system here keeps them as they are, and the numbers are those of the model; the log says so.

    Args:
        format: Name of the format, such as "mx8-e3m4".
        param_filter: Names of parameters with wildcards.
    """

    def __init__(self, format: str, param_filter: str | list[str]) -> None:  # noqa: A002 - the original's name
        self.format, self.param_filter = format, param_filter
        self._chooses = make_param_filter(param_filter)

    def __call__(self, module: nn.Module) -> None:
        """See `apply`; for `nn.Module.apply`."""
        self.apply(module)

    def apply(self, module: nn.Module) -> None:
        """Take the parameters and buffers of a module whose names match."""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if self._chooses(name, tensor):
                self.annotate(tensor)

    def annotate(self, tensor: torch.Tensor) -> None:
        """Take one tensor."""
        _announce_compression(self.format)

    def __repr__(self) -> str:
        return f"Compression(format={self.format!r}, param_filter={self.param_filter!r})"


@cache
def _announce_compression(name: str) -> None:
    log.info("weights are not compressed here; the format %s has no effect", name)


def get_loop_iteration_slice(input_tensor: torch.Tensor, index_tensor: torch.Tensor) -> torch.Tensor:
    """Return one element of a dimension, at an index for each sample.

    Args:
        input_tensor: [batch, n, ...].
        index_tensor: Indices below n, [batch] or [batch, 1].

    Returns:
        [batch, 1, ...].
    """
    index = index_tensor.reshape(-1, *[1] * (input_tensor.dim() - 1)).to(torch.int64)
    return torch.gather(input_tensor, 1, index.expand(-1, -1, *input_tensor.shape[2:]))


def start_implicit_loop(input_tensor: torch.Tensor, loop_dim: int) -> NoReturn:
    """Refuse a loop inside of a step.

    Raises:
        NotThereError: Always.
    """
    raise _no_loop("start_implicit_loop")


def update_implicit_loop(
    input_tensor: torch.Tensor,
    index_tensor: torch.Tensor,
    update_tensor: torch.Tensor,
    stop_sequences_tensor: torch.Tensor,
    start_token: int | Sequence[int],
    max_tokens: int | None = None,
) -> NoReturn:
    """Refuse a loop inside of a step.

    Raises:
        NotThereError: Always.
    """
    raise _no_loop("update_implicit_loop")


def run_implicit_autoregressive_loop(
    input_tensor: torch.Tensor,
    output_tensor: torch.Tensor,
    loop_dim: int,
    start_token: int | Sequence[int],
    stop_sequences: Any = None,
    max_tokens: int | None = None,
) -> NoReturn:
    """Refuse a loop inside of a step.

    Raises:
        NotThereError: Always.
    """
    raise _no_loop("run_implicit_autoregressive_loop")


def _no_loop(name: str) -> NotThereError:
    return NotThereError(
        f"experimental.{name} is not available: a step runs once for each batch, expected no loop inside of "
        "it; write the loop over tokens in Python around cstorch.predict, which compiles its step once"
    )
