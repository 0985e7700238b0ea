"""Kernels: which ops of a step run together, and their cost on a rectangle of the fabric.

`match_kernels` makes the kernel graph; `families` has the match rules and cost functions.
"""

from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.kernels.matching import match_kernels

__all__ = ["Edge", "Kernel", "KernelGraph", "match_kernels"]
