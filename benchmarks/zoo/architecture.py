"""An architecture of a library: the tiny model and the batches that it trains with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BATCH_SIZE = 4
STEPS = 5
SEED = 1

MAX_PARAMETERS = 40_000_000
"""Models with more are not tiny: they take longer and say nothing that a smaller one does not."""


class SkippedError(Exception):
    """No tiny model can be made of an architecture, or its own framework cannot train that; says why."""


@dataclass(frozen=True)
class Workload:
    """A model and its batches, trained on a CPU and on the CS system alike.

    Attributes:
        model: A torch module, or a compiled Keras model, with its first weights.
        batches: One for each step. For torch a dict of tensors, for Keras (features, labels).
        loss: Returns the loss of a model and a batch as a scalar tensor; None for Keras, where the model has
            it.
        about: The class that is trained, and its loss.
    """

    model: Any
    batches: list[Any]
    loss: Callable[[Any, Any], Any] | None
    about: str


def one_line(error: BaseException) -> str:
    """The class of an error and the first line of its message; two where the first announces the other."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text}"[:300]
