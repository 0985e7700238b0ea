"""`cbtorch.utils`: nests of tensors, the loss among a model's outputs."""

from __future__ import annotations

from cstorch.session.utils import data, nest
from cstorch.utils.filters import extract_loss

__all__ = ["data", "extract_loss", "nest"]
