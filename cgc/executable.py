"""A step as bytes that any process with jax can run: `jax.export` of the whole program for CPU and CUDA.

The bytes hold StableHLO, not Python: loading them needs neither the framework that the step came from nor
xDSL, and runs no code of the artifact's author. jax reads what it wrote for at least six months of
releases; the artifact's key holds the version all the same, because what XLA computes may change in the
last place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cgc.cirh.interface import TensorSpec, step_interface
from cgc.errors import ExecutableError
from cgc.lowering.dtypes import device_dtype

if TYPE_CHECKING:
    import jax
    from xdsl.dialects.builtin import ModuleOp

__all__ = ["PLATFORMS", "StepCallable", "device_dtype", "export_step", "load_step"]

PLATFORMS = ("cpu", "cuda")

StepCallable = Callable[
    [Sequence["jax.Array"], Sequence["jax.Array"]], tuple[tuple["jax.Array", ...], tuple["jax.Array", ...]]
]
"""(state, inputs) -> (new state, outputs); see `load_step`."""


def export_step(module: ModuleOp) -> bytes:
    """Lowers a module for all platforms and serializes it; equal modules give equal bytes.

    Raises:
        LoweringError: an op, or a value in it, cannot be executed.
        InvalidModuleError: the interface is not that of a step.
    """
    import jax
    from jax import export

    from cgc.lowering.interpret import step_function

    interface = step_interface(module)
    with _no_source_locations():
        exported = export.export(jax.jit(step_function(module)), platforms=PLATFORMS)(
            _abstract(interface.state), _abstract(interface.inputs)
        )
        return bytes(exported.serialize())


def load_step(data: bytes) -> StepCallable:
    """The inverse of `export_step`.

    Returns:
        A pure function (state, inputs) -> (new state, outputs), all tuples in the order of the step's
        interface, in the types of `device_dtype`. It may be called under `jax.jit` and from jax loops;
        donate there.

    Raises:
        ExecutableError: the bytes are no executable, or one that this jax cannot read or run here.
    """
    import jax
    from jax import export

    try:
        exported = export.deserialize(bytearray(data))
    except Exception as error:  # flatbuffers reports damage as whatever the damaged bytes lead to
        raise ExecutableError(
            f"got {len(data)} bytes, expected an executable that jax {jax.__version__} can read ({error}); "
            "compile again"
        ) from error
    platform = jax.default_backend()
    if platform not in _names(exported.platforms):
        raise ExecutableError(
            f"the executable is for {', '.join(exported.platforms)}, this process computes on {platform!r}; "
            "set JAX_PLATFORMS to one of them"
        )

    call: Callable[..., Any] = exported.call

    def step(state: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> Any:
        return call(tuple(state), tuple(inputs))

    return step


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Keeps paths and line numbers of whoever calls the compiler out of the bytes."""
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


def _names(platforms: Sequence[str]) -> set[str]:
    """Platforms under every name that jax has for them: its CUDA backend calls itself "gpu"."""
    return {*platforms, *(["gpu"] if "cuda" in platforms else [])}
