"""Loads the executable of an artifact, what `jax.export` has made of a whole step.

The bytes hold StableHLO, not Python: loading them needs neither the framework that the step came from nor the
compiler, and runs no code of the artifact's author.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cs_toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import jax

StepCallable = Callable[
    [Sequence["jax.Array"], Sequence["jax.Array"]], tuple[tuple["jax.Array", ...], tuple["jax.Array", ...]]
]
"""(state, inputs) -> (new state, outputs); see `load_step`."""


class ExecutableError(ToolkitError):
    """Bytes that are no executable, or one that cannot run here."""


def load_step(data: bytes) -> StepCallable:
    """The inverse of `cgc.executable.export_step`.

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


def _names(platforms: Sequence[str]) -> set[str]:
    """Platforms under every name that jax has for them: its CUDA backend calls itself "gpu"."""
    return {*platforms, *(["gpu"] if "cuda" in platforms else [])}
