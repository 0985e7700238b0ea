"""`torch.autocast` in a step: the recorder notes it, and the compiler computes in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cstorch.precision import format_of
from cstorch.tracing.places import Places


@contextmanager
def following_autocast(places: Places) -> Iterator[None]:
    """Notes where a step enters and leaves `torch.autocast`, of whatever device; PyTorch casts nothing."""

    def enter(context: Any) -> Any:
        places.enter_half(format_of(context.fast_dtype) if context._enabled else None)
        return context

    def leave(context: Any, *error: object) -> None:
        places.leave_half()

    kind: Any = torch.autocast
    originals = kind.__enter__, kind.__exit__
    kind.__enter__, kind.__exit__ = enter, leave
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = originals
