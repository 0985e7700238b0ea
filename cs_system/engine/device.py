"""The device of an engine: JAX settings before its first use, conversion and checks of values, and errors."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cs_system.errors import CsSystemError, DeviceMemoryError, StateMismatchError
from cs_system.messages import dtype_named, state_problems
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype

log = logging.getLogger("cs_system.engine")

# The ops that XLA for CPUs gives to YNN by default, except for convolutions.
_YNN = ("LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE")


def limit_threads(threads: int | None) -> int:
    """Set the number of compute threads; call before `import jax`.

    Results are reproducible bit for bit with the same number of threads.

    Returns:
        The number set.
    """
    # At most one thread for each CPU: 4 threads on 2 CPUs doubled the time of a step.
    available = len(os.sched_getaffinity(0))
    count = min(threads or available, available)
    # XLA reads the size of its thread pool from this variable.
    os.environ["NPROC"] = str(count)
    return count


def computing_threads() -> int:
    """Return the number set by `limit_threads`, else the number of CPUs of this process."""
    return int(os.environ.get("NPROC") or len(os.sched_getaffinity(0)))


@functools.cache
def compiler_options(threads: int) -> dict[str, str | bool]:
    """Return the options of XLA for programs that run on this number of threads; imports JAX."""
    import jax

    # XLA for CPUs has two routines for convolutions. The one that it prefers (YNN) computes each on one
    # thread, the other one (Eigen) on all, mostly for more CPU time: 1.3 times as much is common. Wall
    # milliseconds for a step of `benchmarks.step_time`, with the XLA of jax 0.10.2 and two threads:
    #
    #     model         YNN     Eigen
    #     cnn_mid       29.1    20.9
    #     resnet_mid    18.7    13.5
    #     unet_mid      41.4    34.0
    #     small_cnn      2.31    1.82
    #     resnet_tiny    1.37    1.23
    #     unet_tiny      2.77    2.41
    #
    # For products and sums YNN uses all threads; programs without convolutions are compiled to the same code
    # as without the option. An XLA that does not know the option computes as it prefers to.
    jit: Callable[..., Any] = jax.jit
    if threads == 1 or jax.default_backend() != "cpu":
        return {}
    options: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": ",".join(_YNN)}
    try:
        jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        log.warning("convolutions may be slow, this XLA does not know an option: %s", error)
        return {}
    return options


def cpu_digest() -> str:
    """Return 16 hex digits that are equal on equal CPUs.

    Compiled programs use the instructions of the CPU that they were compiled on; a cache in a home directory
    may be shared with machines that lack some of them.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kept = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.sha256("\n".join([platform.machine(), *kept]).encode()).hexdigest()[:16]


def start_device(cache_dir: Path | None, *, dispatches_async: bool = True, on_cpu: bool = False) -> str:
    """Import JAX, start its device, and turn on the cache of compiled programs.

    Args:
        cache_dir: Directory of compiled programs; None stores nothing.
        dispatches_async: Whether calls on a CPU return before they are computed.
        on_cpu: Use this machine's CPU as the device, even if there are others.

    Returns:
        The platform: "cpu" or "gpu".
    """
    import jax

    settings: Any = jax.config

    if on_cpu:
        settings.update("jax_platforms", "cpu")
    settings.update("jax_cpu_enable_async_dispatch", dispatches_async)
    if cache_dir is not None:
        settings.update("jax_compilation_cache_dir", str(cache_dir))
        # By default JAX stores only programs that took long to compile.
        settings.update("jax_persistent_cache_min_compile_time_secs", 0)
        settings.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(jax.devices()[0].platform)


def check_state(interface: StepInterface, state: Mapping[str, np.ndarray]) -> None:
    """Check part of a state against the interface of its step.

    Raises:
        StateMismatchError: names, dtypes or shapes differ, or a number does not fit the device's type.
    """
    specs = tuple(spec for spec in interface.state if spec.name in state)
    problems = state_problems(specs, {n: (a.dtype.name, a.shape) for n, a in state.items()})
    for spec in () if problems else specs:
        array, narrow = state[spec.name], dtype_named(device_dtype(spec.dtype))
        if narrow == array.dtype or not array.size or not np.issubdtype(narrow, np.integer):
            continue
        limits, least, most = np.iinfo(narrow), array.min(), array.max()
        if least < limits.min or most > limits.max:
            problems.append(
                f"'{spec.name}' has values from {least} to {most}; the device computes in {narrow}"
            )
    if problems:
        raise StateMismatchError.of(problems)


def as_device(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Convert an array to the type that the device computes in, without a copy if it has that type."""
    return array.astype(dtype_named(device_dtype(spec.dtype)), copy=False)


def from_device(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Copy an array to the dtype of the interface; a view would keep the device from reusing its memory."""
    return array.astype(dtype_named(spec.dtype), copy=True)


def select_state(interface: StepInterface, names: Sequence[str] | None) -> list[TensorSpec]:
    """Return the state tensors with the given names; None: all.

    Raises:
        StateMismatchError: a name that the program does not have.
    """
    specs = {spec.name: spec for spec in interface.state}
    selected = list(specs) if names is None else list(names)
    unknown = [f"'{name}' is not state of the program" for name in selected if name not in specs]
    if unknown:
        raise StateMismatchError.of(unknown)
    return [specs[name] for name in selected]


@contextmanager
def device_errors(kind: type[CsSystemError], doing: str) -> Iterator[None]:
    """Convert device errors in the body to errors of a CS system: DeviceMemoryError, else `kind`."""
    try:
        yield
    except CsSystemError:
        raise
    except MemoryError as error:
        raise DeviceMemoryError(f"out of memory while {doing}: {error}") from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        # JAX has no exception class for a lack of memory.
        if "RESOURCE_EXHAUSTED" in message:
            raise DeviceMemoryError(f"out of memory while {doing}: {message}") from error
        raise kind(f"{doing} failed: {message}") from error
