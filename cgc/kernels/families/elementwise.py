"""Generated kernels whose loops treat every element by itself."""

from __future__ import annotations

from cgc.kernels.loop_cost import loop_family

FAMILY = loop_family(
    name="elementwise",
    doc="ops on elements at one place",
)
