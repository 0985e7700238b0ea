"""The number of examples of a property."""

from __future__ import annotations

from hypothesis import settings


def examples(usual: int) -> int:
    """Return `usual` in `make test`, at least the number of other properties in `make soak`."""
    return max(usual, settings.default.max_examples if settings.default is not None else 0)
