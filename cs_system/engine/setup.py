"""Settings of JAX that must be made before its first use in the process."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger("cs_system.engine")

_YNN = ("LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE")
"""What XLA for CPUs gives to YNN by itself, less the convolutions."""


def limit_threads(threads: int | None) -> int:
    """Sets the number of threads that compute; call before `import jax`.

    More threads than CPUs double the time of a step (measured: 4 on 2), so the CPUs of this process are the
    upper limit. Results are reproducible bit for bit for one number of threads.

    Returns:
        The number set.
    """
    available = len(os.sched_getaffinity(0))
    count = min(threads or available, available)
    # XLA takes the size of its thread pool from this variable.
    os.environ["NPROC"] = str(count)
    return count


def computing_threads() -> int:
    """What `limit_threads` has set, else the number of CPUs of this process."""
    return int(os.environ.get("NPROC") or len(os.sched_getaffinity(0)))


@functools.cache
def compiler_options(threads: int) -> dict[str, str | bool]:
    """Options of XLA for programs that so many threads compute; imports JAX.

    XLA for CPUs has two routines for convolutions. The one that it prefers (YNN) computes each on one thread,
    the other one (Eigen) on all, mostly for more CPU time: 1.3 times as much is common. Wall milliseconds for
    a step of `benchmarks.step_time`, with the XLA of jax 0.10.2 and two threads:

        model         YNN     Eigen
        cnn_mid       29.1    20.9
        resnet_mid    18.7    13.5
        unet_mid      41.4    34.0
        small_cnn      2.31    1.82
        resnet_tiny    1.37    1.23
        unet_tiny      2.77    2.41

    For products and sums YNN uses all threads; programs without convolutions are compiled to the same as
    without the option. An XLA that does not know it computes as it prefers to.
    """
    import jax

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
    """16 hex digits that are equal on equal CPUs.

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
    """Imports JAX, starts its device and turns on the cache of compiled programs.

    Args:
        cache_dir: Of compiled programs; None keeps nothing.
        dispatches_async: Whether calls of a CPU return before they are computed.
        on_cpu: The device is this machine, whatever other ones it has.

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
        # By default JAX keeps only what took long to compile.
        settings.update("jax_persistent_cache_min_compile_time_secs", 0)
        settings.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(jax.devices()[0].platform)
