"""Layers that tell the original's compiler something, and compute nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Scope(nn.Module):
    """Names what follows; gives back what it gets.

    Args:
        scope_name: the name.
    """

    def __init__(self, scope_name: str) -> None:
        super().__init__()
        self.scope_name = scope_name

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the original's name
        """Return the same tensor: what follows has the name."""
        return input

    def exit(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as above
        """Return the same tensor: what follows does not have the name."""
        return input

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"scope_name={self.scope_name!r}"


class StripPadding(nn.Module):
    """Says that a tensor may be padded; here no tensor is, and it gives back what it gets."""

    def forward(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        """The same tensor."""
        return x
