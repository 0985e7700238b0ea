"""A compiled function of a step in layers on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cs_system.engine.executable import load_step
from cs_system.engine.setup import compiler_options, computing_threads
from cs_system.wire import dtype_named
from cs_toolkit.schedule import Key
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype

_ShapeDtypeStruct: Callable[..., Any] = jax.ShapeDtypeStruct


class Function:
    """One function; it may be called from any thread.

    Args:
        data: What `cgc.executable.export_step` wrote of it.
        interface: Of the executable: weights are its state.

    Raises:
        ExecutableError: the bytes are no executable, or one that cannot run here.
    """

    def __init__(self, data: bytes, interface: StepInterface) -> None:
        self._weights = len(interface.state)
        step = load_step(data)

        def results(weights: Any, others: Any) -> Any:
            return step(weights, others)[1]

        jitted: Any = jax.jit(results)
        lowered = jitted.lower(_shapes(interface.state), _shapes(interface.inputs))
        self._compiled = lowered.compile(compiler_options=compiler_options(computing_threads()))

    def __call__(self, arguments: Sequence[Any], keys: Sequence[np.ndarray]) -> Sequence[Any]:
        """Starts the function; arrays at aligned addresses are read in place until its results are ready."""
        put: Any = jax.device_put
        there = tuple(put([*arguments, *keys]))
        found: Sequence[Any] = self._compiled(there[: self._weights], there[self._weights :])
        return found


def key_arrays(keys: Sequence[Key]) -> list[np.ndarray]:
    """Keys of random ops as the functions take them: the bits of unsigned integers in signed ones."""
    return [np.asarray(key, np.uint32).view(np.int32) for key in keys]


def _shapes(specs: Sequence[TensorSpec]) -> tuple[Any, ...]:
    return tuple(_ShapeDtypeStruct(spec.shape, dtype_named(device_dtype(spec.dtype))) for spec in specs)
