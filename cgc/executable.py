"""Executables: `jax.export` of a whole program for CPU and CUDA, which any process with JAX can run.

`cs_system.engine.executable` loads them. JAX reads exports of at least the last six months. The artifact's
key has the version of JAX nevertheless, because results of XLA may change in the last place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from cs_toolkit.step import StepInterface, TensorSpec, device_dtype

if TYPE_CHECKING:
    import jax
    from xdsl.dialects.builtin import ModuleOp

PLATFORMS = ("cpu", "cuda")


def export_step(module: ModuleOp, interface: StepInterface) -> bytes:
    """Lower a module for all platforms and serialize it; equal modules give equal bytes.

    Args:
        module: the step.
        interface: its interface (`cgc.cirh.interface.step_interface`).

    Raises:
        LoweringError: an op, or a value in it, cannot be executed.
    """
    import jax
    from jax import export

    from cgc.lowering.interpret import step_function

    with _no_source_locations():
        exported = export.export(jax.jit(step_function(module)), platforms=PLATFORMS)(
            _abstract(interface.state), _abstract(interface.inputs)
        )
        return bytes(exported.serialize())


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Keep paths and line numbers of the caller out of the bytes."""
    import jax

    setting = "jax_traceback_in_locations_limit"
    update: Callable[[str, int], None] = jax.config.update
    before = getattr(jax.config, setting)
    update(setting, 0)
    try:
        yield
    finally:
        update(setting, before)


def _abstract(specs: Sequence[TensorSpec]) -> tuple[jax.ShapeDtypeStruct, ...]:
    import jax

    struct: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct
    return tuple(struct(spec.shape, device_dtype(spec.dtype)) for spec in specs)
