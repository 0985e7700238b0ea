"""`cbtorch.utils`: nests of tensors, the loss among a model's outputs."""

from __future__ import annotations

from cstorch.utils.helpers import extract_loss
from cstorch.v1.session.utils import data, nest

__all__ = ["data", "extract_loss", "nest"]
