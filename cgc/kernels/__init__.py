"""Kernels: which ops of a step run together, and what they cost on a rectangle of the fabric.

`match_kernels` is in `cgc.kernels.matching`, re-exported here; `families` has the cost functions.
"""

from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.kernels.matching import match_kernels

__all__ = ["Edge", "Kernel", "KernelGraph", "match_kernels"]
