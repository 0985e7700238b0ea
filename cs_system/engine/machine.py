"""The threads and the CPU of this machine, for programs that JAX compiles; imports nothing of JAX."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path


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
