"""How many examples of a property are tried."""

from __future__ import annotations

from hypothesis import settings


def examples(usual: int) -> int:
    """So many in `make test`, and no fewer than of all other properties in `make soak`."""
    return max(usual, settings.default.max_examples if settings.default is not None else 0)
