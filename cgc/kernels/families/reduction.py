"""Generated kernels whose loops carry a sum, a largest element or a scan."""

from __future__ import annotations

from cgc.kernels.loop_cost import loop_family

FAMILY = loop_family(
    name="reduction",
    doc="elementwise ops with sums, maxima or scans",
)
