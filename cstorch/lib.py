"""The original's binary library: what programs call of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from cstorch.compatibility import announce_unused


def set_attribute(tensor: torch.Tensor, name: str, value: Any) -> None:
    """Annotate the operation that computes a tensor for the original's compiler; without effect here."""
    announce_unused("cerebras_pytorch_lib.set_attribute()", {name: value or True})


def is_initialized() -> bool:
    """Return True: there is nothing to initialize."""
    return True


cerebras_pytorch_lib = SimpleNamespace(set_attribute=set_attribute, is_initialized=is_initialized)
