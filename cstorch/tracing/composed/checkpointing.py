"""Gradient checkpointing in a step: its function runs once.

The compiler sees forward and backward pass together, and decides what is kept. A second run of the function
would draw other random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class CheckpointFunction:
    """In the place of the one in `torch.utils.checkpoint`, which `use_reentrant=True` applies."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """What the function returns."""
        return function(*args)


def _checkpoint_without_reentrant_generator(*_: Any, **__: Any) -> Iterator[None]:
    """Of `use_reentrant=False`: what stands around the function's run is nothing."""
    yield


REPLACED = (CheckpointFunction, _checkpoint_without_reentrant_generator)
