"""Passes over CIRH modules, and the standard pipelines; `pipeline` runs them by name."""

from __future__ import annotations

from cs_toolkit.step import Precision

# The passes of every module. Canonicalization exposes constants, folding exposes neutral elements, and the
# patterns of fusion are written for the simplified form; their results may contain neutral and equal ops.
DEFAULT_PIPELINE = "canonicalize,constant-fold,canonicalize,cse,dce,fuse,canonicalize,cse,dce"


def precision_pipeline(precision: Precision) -> str:
    """Return the passes after all others of a program in 16 bits; empty for float32."""
    return "" if precision == "float32" else f"precision{{mode={precision}}},canonicalize,cse,dce"
