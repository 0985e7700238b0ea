"""Executables, which any user may upload: MLIR parses their module, and may crash the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import export, lax
from jax import numpy as jnp
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from cs_system.engine.allowed_ops import RefusedOpError, _check_module
from cs_system.engine.executable import load_step
from cs_system.errors import ExecutableError
from tests.fuzz.target import Target


def _loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ y) + i, x)


PROGRAMS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x + 1,
    _loop,
    lambda x: (jnp.sort(x).sum(), lax.top_k(x, 2), lax.erf(x)),
    lambda x: lax.linalg.cholesky(x @ x.T),
    lambda x: lax.cond(x[0, 0] > 0, jnp.exp, jnp.log, x),
)


def exported(program: Callable[[Any], Any]) -> export.Exported:
    """Export a program for a matrix."""
    return export.export(jax.jit(program))(jax.ShapeDtypeStruct((3, 3), np.float32))


def parse_module(data: bytes) -> None:
    """The text of a module: mutations of it get further than those of its bytes."""
    context = ir.Context()
    context.enable_multithreading(False)
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    context.attach_diagnostic_handler(lambda diagnostic: True)
    try:
        module = ir.Module.parse(data.decode("utf-8", "replace").replace("\0", " "), context)
    except (ir.MLIRError, ValueError):
        return
    _check_module(module)


TARGETS = [
    Target(
        "executables.load",
        load_step,
        (ExecutableError,),
        lambda: [bytes(exported(program).serialize()) for program in PROGRAMS],
        may_crash=True,
    ),
    Target(
        "executables.module",
        parse_module,
        (RefusedOpError,),
        lambda: [exported(program).mlir_module().encode() for program in PROGRAMS],
        may_crash=True,
    ),
]
