"""What is among the outputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cstorch.errors import SessionError


def extract_loss(outputs: Any) -> torch.Tensor:
    """The loss among what a model returns: a tensor, the first of a sequence, `loss` of a mapping or object.

    Raises:
        SessionError: there is none.
    """
    found = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
    elif not isinstance(outputs, torch.Tensor) and getattr(outputs, "loss", None) is not None:
        found = outputs.loss
    elif isinstance(outputs, list | tuple) and outputs:
        found = outputs[0]
    if not isinstance(found, torch.Tensor):
        raise SessionError(
            f"a model returned a {type(outputs).__name__} without a loss, expected a tensor, a sequence that "
            "begins with one, or a mapping or object with `loss`"
        )
    return found
