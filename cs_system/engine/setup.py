"""Settings of JAX that must be made before its first use in the process."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from pathlib import Path
from typing import Any

log = logging.getLogger("cs_system.engine")


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


def start_device(cache_dir: Path | None) -> str:
    """Imports JAX, starts its device and turns on the cache of compiled programs.

    Returns:
        The platform: "cpu" or "gpu".
    """
    import jax

    settings: Any = jax.config

    if cache_dir is not None:
        settings.update("jax_compilation_cache_dir", str(cache_dir))
        # By default JAX keeps only what took long to compile.
        settings.update("jax_persistent_cache_min_compile_time_secs", 0)
        settings.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(jax.devices()[0].platform)
