"""Compiles the steps of tests for one short run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

OPTIONS: dict[str, bool | int] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""LLVM optimises nothing, and fused loops are written by XLA's older, quicker emitter of code."""


def quick_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` for a program that runs for milliseconds, and that XLA would compile for seconds.

    It takes a quarter of the CPU time to compile a training step so, and the numbers are equal but for
    rounding. Tests whose subject is the machine code or the bits take `jax.jit`.
    """
    jitted: Callable[..., Any] = jax.jit(function, compiler_options=OPTIONS)
    return jitted
