"""Passes over CIRH modules, a file each, and the standard pipelines; `pipeline` runs them by name."""

from __future__ import annotations

from cs_toolkit.step import Precision

DEFAULT_PIPELINE = "canonicalize,constant-fold,canonicalize,cse,dce,fuse,canonicalize,cse,dce"
"""What every module goes through: canonicalization shows constants, folding shows neutral elements, and
the patterns of fusion are written for what is simple then; they leave neutral and equal ops behind."""


def precision_pipeline(precision: Precision) -> str:
    """What follows the other rewrites of a program that is not all float32; empty for float32."""
    return "" if precision == "float32" else f"precision{{mode={precision}}},canonicalize,cse,dce"
