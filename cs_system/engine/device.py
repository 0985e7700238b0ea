"""The device: its start, and the options of its compiler."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger("cs_system.engine")

# The ops that XLA for CPUs gives to YNN by default, except for convolutions.
_YNN = ("LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE")


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
