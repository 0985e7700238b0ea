"""The executables of an artifact, loaded and compiled: a whole step, or the functions of a step in layers.

The bytes contain StableHLO, not Python: loading them needs neither the framework of the program nor the
compiler. Any client may upload them, so their ops are checked against a closed list (`allowed_ops`) first.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import export

from cs_system.engine.allowed_ops import RefusedOpError, check_exported
from cs_system.engine.base import Executables
from cs_system.engine.device import compiler_options
from cs_system.engine.machine import computing_threads
from cs_system.errors import READ_LIMIT_S, READ_LIMIT_S_PER_MIB, ExecutableError
from cs_system.messages import dtype_named
from cs_toolkit.layered_step import Call, Key
from cs_toolkit.step import StepInterface, device_dtype

_ShapeDtypeStruct: Callable[..., Any] = jax.ShapeDtypeStruct

# Collective ops of XLA, in which devices wait for each other.
_EXCHANGES = re.compile(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)")

# A function (state, inputs) -> (new state, outputs), as `load_step` returns it.
StepCallable = Callable[
    [Sequence[jax.Array], Sequence[jax.Array]], tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]
]


def load_step(data: bytes, name: str = "step") -> StepCallable:
    """Load an executable that `cgc.lowering.interpret.export_step` wrote.

    Args:
        data: Its bytes.
        name: Its name in errors.

    Returns:
        A pure function (state, inputs) -> (new state, outputs), all tuples in the order of the step's
        interface, in the types of `device_dtype`. It may be called under `jax.jit` and from jax loops; donate
        there.

    Raises:
        ExecutableError: the bytes are no executable, contain an op that no program of the compiler contains,
            or cannot be read or run by this jax.
    """
    try:
        with _limited_cpu_time(READ_LIMIT_S + READ_LIMIT_S_PER_MIB * len(data) / 2**20):
            exported = export.deserialize(bytearray(data))
            check_exported(exported)
    except RefusedOpError as error:
        raise ExecutableError(f"executable '{name}' is refused: {error}; compile again") from error
    except Exception as error:  # flatbuffers raises all kinds of errors for damaged bytes
        raise ExecutableError(
            f"executable '{name}': got {len(data)} bytes, expected an executable that jax {jax.__version__} "
            f"can read ({str(error)[:200]}); compile again"
        ) from error
    platform = jax.default_backend()
    # jax's CUDA backend calls itself "gpu".
    names = {*exported.platforms, *(["gpu"] if "cuda" in exported.platforms else [])}
    if platform not in names:
        raise ExecutableError(
            f"executable '{name}' is for {', '.join(exported.platforms)}, this process computes on "
            f"{platform!r}; set JAX_PLATFORMS to one of them"
        )

    call: Callable[..., Any] = exported.call

    def step(state: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> Any:
        return call(tuple(state), tuple(inputs))

    return step


@contextlib.contextmanager
def _limited_cpu_time(seconds: float) -> Iterator[None]:
    """End this process if it computes for longer than this in the body."""
    # A thread could not: the reader holds the interpreter's lock. Only the kernel can end it.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Devices(Protocol):
    """Placement of values: on one device, or on several, sharded along the batch or replicated."""

    whole: Any
    """The sharding of a replicated value; None if there is one device."""

    def put(self, array: np.ndarray) -> Any:
        """Return a replicated value; an array at an aligned address is read in place."""
        ...


class OneDevice:
    """The default device."""

    whole = None

    def put(self, array: np.ndarray) -> Any:
        """Return a value on the default device; an array at an aligned address is read in place."""
        return jax.device_put(array)


class Function:
    """A compiled function of a step in layers; it may be called from any thread.

    Args:
        data: Bytes written by `cgc.lowering.interpret.export_step`.
        interface: Interface of the executable: weights are its state.
        devices: Devices that compute.
        arguments: Sharding of each argument except for the keys; None if there is one device.
        results: Sharding of each result that needs a certain one.
        name: Name of the executable in errors.

    Attributes:
        shardings: Shardings of the results.
        has_sums: True if it sums over devices or gathers from them, so that it waits for all of them.

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
        name: str = "function",
    ) -> None:
        self._weights = len(interface.state)
        self._devices = devices
        step = load_step(data, name)

        def body(*values: Any) -> Any:
            return tuple(step(values[: self._weights], values[self._weights :])[1])

        specs = (*interface.state, *interface.inputs)
        shardings = [devices.whole] * len(specs)
        shardings[: len(arguments or ())] = arguments or ()
        jit: Callable[..., Any] = jax.jit
        jitted = jit(body) if devices.whole is None else jit(body, out_shardings=tuple(results or ()))
        shapes = [
            _ShapeDtypeStruct(spec.shape, dtype_named(device_dtype(spec.dtype)), sharding=sharding)
            for spec, sharding in zip(specs, shardings, strict=True)
        ]
        lowered = jitted.lower(*shapes)
        self._compiled = lowered.compile(compiler_options=compiler_options(computing_threads()))
        self.shardings: Sequence[Any] = self._compiled.output_shardings
        # XLA inserts the collectives when it propagates shardings, so only the compiled text shows them.
        self.has_sums = devices.whole is not None and bool(_EXCHANGES.search(self._compiled.as_text()))

    def __call__(self, arguments: Sequence[Any], keys: Sequence[Key]) -> Sequence[Any]:
        """Start the function; arrays at aligned addresses are read in place until its results are ready."""
        # The device takes the bits of unsigned integers as signed ones.
        key_arrays = [np.asarray(key, np.uint32).view(np.int32) for key in keys]
        values = [
            self._devices.put(value) if isinstance(value, np.ndarray) else value
            for value in (*arguments, *key_arrays)
        ]
        found: Sequence[Any] = self._compiled(*values)
        return found


class PlacedCalls:
    """The functions of a sequence of calls, each compiled once for every sharding of its arguments.

    Args:
        calls: The calls in their order.
        executables: Executables of their functions.
        devices: Devices that compute.
        shardings: By value number, the sharding of values that are not replicated.
        whole: Numbers of results that must be replicated.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        executables: Executables,
        devices: Devices,
        shardings: Mapping[int, Any],
        whole: frozenset[int],
    ) -> None:
        self._compiled: dict[Any, Function] = {}
        self._functions = []
        known = dict(shardings)
        for call in calls:
            arguments = tuple(known.get(number, devices.whole) for number in call.arguments)
            results = tuple(devices.whole if number in whole else None for number in call.results)
            key = (call.function, arguments, results) if devices.whole is not None else call.function
            if key not in self._compiled:
                data, interface = executables[call.function]
                name = f"function {call.function}"
                self._compiled[key] = Function(data, interface, devices, arguments, results, name)
            function = self._compiled[key]
            known.update(zip(call.results, function.shardings, strict=True))
            self._functions.append(function)

    def __getitem__(self, index: int) -> Function:
        """Return the function of a call."""
        return self._functions[index]
