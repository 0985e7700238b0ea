"""Numbers as short texts, for the page and the terminal."""

from __future__ import annotations

import math

_UNITS = ("", "k", "M", "G", "T")


def si(value: float, unit: str = "") -> str:
    """Format a number with a prefix and a unit: `1.25 M`, `312`, `0.5`, `1.25 MB/s`."""
    exponent = 0
    while abs(value) >= 999.5 and exponent < len(_UNITS) - 1:
        value /= 1000
        exponent += 1
    digits = f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{digits} {_UNITS[exponent]}{unit}".strip()


def figure(value: float) -> str:
    """Format a number with four significant digits, without an exponent where it is readable."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"
