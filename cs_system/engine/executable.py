"""Executables of an artifact, loaded and compiled: of a whole step, or the functions of a step in layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import export

from cs_system.engine.device import compiler_options, computing_threads
from cs_system.messages import dtype_named
from cs_toolkit.errors import ToolkitError
from cs_toolkit.layered_step import Call, Key
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype

_ShapeDtypeStruct: Callable[..., Any] = jax.ShapeDtypeStruct

_EXCHANGES = re.compile(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)")
"""Ops of XLA in which devices wait for each other."""

StepCallable = Callable[
    [Sequence[jax.Array], Sequence[jax.Array]], tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]
]
"""(state, inputs) -> (new state, outputs); see `load_step`."""

Executables = Mapping[int, tuple[bytes, StepInterface]]
"""Bytes, as `cgc.executable.export_step` wrote them, and interface of functions, by number."""


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


class Devices(Protocol):
    """Where values lie: on one device, or on several, cut along the batch or the same on all."""

    whole: Any
    """The sharding of a value that is the same on all; None where there is one device."""

    def put(self, array: np.ndarray) -> Any:
        """A value that is the same on all; an array at an aligned address is read in place."""
        ...


class OneDevice:
    """The default device; see `Devices`."""

    whole = None

    def put(self, array: np.ndarray) -> Any:
        """See `Devices`."""
        return jax.device_put(array)


class Function:
    """One function with places for its arguments and results; it may be called from any thread.

    Args:
        data: What `cgc.executable.export_step` wrote of it.
        interface: Of the executable: weights are its state.
        devices: That compute.
        arguments: Sharding of each argument but the keys; None where there is one device.
        results: Sharding of each result that has to have one.

    Attributes:
        shardings: Of the results.
        has_sums: Whether it sums over devices, or gathers from them: it waits for all of them.

    Raises:
        ExecutableError: the bytes are no executable, or one that cannot run here.
    """

    def __init__(
        self,
        data: bytes,
        interface: StepInterface,
        devices: Devices,
        arguments: Sequence[Any] | None = None,
        results: Sequence[Any] | None = None,
    ) -> None:
        self._weights = len(interface.state)
        self._devices = devices
        step = load_step(data)

        def body(*values: Any) -> Any:
            return tuple(step(values[: self._weights], values[self._weights :])[1])

        specs = (*interface.state, *interface.inputs)
        places = [devices.whole] * len(specs)
        places[: len(arguments or ())] = arguments or ()
        jit: Callable[..., Any] = jax.jit
        jitted = jit(body) if devices.whole is None else jit(body, out_shardings=tuple(results or ()))
        lowered = jitted.lower(*map(_shape, specs, places))
        self._compiled = lowered.compile(compiler_options=compiler_options(computing_threads()))
        self.shardings: Sequence[Any] = self._compiled.output_shardings
        self.has_sums = devices.whole is not None and bool(_EXCHANGES.search(self._compiled.as_text()))

    def __call__(self, arguments: Sequence[Any], keys: Sequence[Key]) -> Sequence[Any]:
        """Starts the function; arrays at aligned addresses are read in place until its results are ready."""
        values = [
            self._devices.put(value) if isinstance(value, np.ndarray) else value
            for value in (*arguments, *map(_key_array, keys))
        ]
        found: Sequence[Any] = self._compiled(*values)
        return found


class PlacedCalls:
    """The functions of some calls in their order, each compiled once for the places that its values have.

    Args:
        calls: In their order.
        executables: What they call.
        devices: That compute.
        places: Sharding of values by number, of those that are not the same on all devices.
        whole: Numbers of results that have to be the same on all.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        executables: Executables,
        devices: Devices,
        places: Mapping[int, Any],
        whole: frozenset[int],
    ) -> None:
        self._compiled: dict[Any, Function] = {}
        self._functions = []
        known = dict(places)
        for call in calls:
            arguments = tuple(known.get(number, devices.whole) for number in call.arguments)
            results = tuple(devices.whole if number in whole else None for number in call.results)
            key = (call.function, arguments, results) if devices.whole is not None else call.function
            if key not in self._compiled:
                data, interface = executables[call.function]
                self._compiled[key] = Function(data, interface, devices, arguments, results)
            function = self._compiled[key]
            known.update(zip(call.results, function.shardings, strict=True))
            self._functions.append(function)

    def __getitem__(self, index: int) -> Function:
        """The function of a call."""
        return self._functions[index]


def _names(platforms: Sequence[str]) -> set[str]:
    """Platforms under every name that jax has for them: its CUDA backend calls itself "gpu"."""
    return {*platforms, *(["gpu"] if "cuda" in platforms else [])}


def _key_array(key: Key) -> np.ndarray:
    """The key of a random op as the functions take it: the bits of unsigned integers in signed ones."""
    return np.asarray(key, np.uint32).view(np.int32)


def _shape(spec: TensorSpec, sharding: Any) -> Any:
    return _ShapeDtypeStruct(spec.shape, dtype_named(device_dtype(spec.dtype)), sharding=sharding)
