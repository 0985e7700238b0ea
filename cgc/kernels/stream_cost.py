"""What the streams between kernels of images allow: the lines of an image go over them one after the other.

A stream has lanes for every group of elements of a line, so that a long line takes no longer than one full
group. Copies of a kernel share the lines and do not shorten that: what comes to all of them is one stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cgc.kernels.coefficients import coefficient
from cgc.kernels.core_cost import width_factor

_IMAGE_RANK = 4
"""Samples, height, width and channels; a volume has one more."""

LINES = frozenset(
    {
        "lines",  # lines of the images of a sample on the slowest stream; left out where there are no images
        "line_elements",  # elements of such a line
    }
)


def image_lines(shape: Sequence[int], batch: int) -> dict[str, int]:
    """The parameters `LINES` of a tensor [samples, ..., height, width, channels]; empty for other tensors."""
    elements = math.prod(shape[-2:])
    if len(shape) < _IMAGE_RANK or not math.prod(shape):
        return {}
    return {"lines": -(-math.prod(shape[:-2]) // batch), "line_elements": elements}


def line_cycles(parameters: Mapping[str, int]) -> float:
    """Transmission cycles per sample of a kernel's slowest stream of lines; 0 where it has none."""
    if "lines" not in parameters:
        return 0.0
    words = width_factor(parameters) * _group_cycles(parameters["line_elements"])
    return parameters["lines"] * (coefficient("line_start") + words)


def reserve(parameters: Mapping[str, int], without_lines: float = 1.0) -> float:
    """The share of the pace that a kernel computes in, see `cgc.kernels.configurations.Configurations`.

    A kernel of images computes while the words of a line come, not during its start.
    """
    if "lines" not in parameters:
        return without_lines
    words = _group_cycles(coefficient("stream_group"))
    return words / (coefficient("line_start") + words)


def _group_cycles(elements: float) -> float:
    """Cycles of the 16-bit elements of a line: those of the fullest group of lanes."""
    return min(elements, coefficient("stream_group")) / coefficient("stream_lanes")
