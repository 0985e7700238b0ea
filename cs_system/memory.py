"""The memory that processes of a CS system may use, and kills by the kernel for lack of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Limits above this are none: cgroups of version 1 have the largest multiple of a page.
_UNLIMITED_BYTES = 1 << 60

_OOM_KILLS = r"(?m)^oom_kill (\d+)$"


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a process that has been killed.

    Attributes:
        peak_bytes: The most that it has used; 0 if that is not known.
        limit_bytes: The most that it may use; 0 if that is not known.
        limited_by: What sets this limit.
        is_killed_for_memory: The kernel has killed a process for lack of memory while it ran.
    """

    peak_bytes: int
    limit_bytes: int
    limited_by: str
    is_killed_for_memory: bool


def memory_limit(root: Path = Path("/")) -> tuple[int, str]:
    """Return how much memory this process may use in bytes, 0 if that is not known, and what sets the limit.

    Args:
        root: Where `proc` and `sys` are.
    """
    limits = []
    if (total := _number(root / "proc/meminfo", r"MemTotal:\s+(\d+) kB")) is not None:
        limits.append((1024 * total, "this machine"))
    for directory in _memory_cgroups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (limit := _number(directory / name, r"(\d+)$")) is not None and limit < _UNLIMITED_BYTES:
                limits.append((limit, "its cgroup"))
    return min(limits, default=(0, ""))


def count_oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes of the own cgroup, or else of this machine, were killed for lack of memory.

    Args:
        root: Where `proc` and `sys` are.
    """
    # A cgroup counts its own processes, whichever limit has led to the kill.
    for directory in _memory_cgroups(root):
        for name in ("memory.events", "memory.oom_control"):
            if (kills := _number(directory / name, _OOM_KILLS)) is not None:
                return kills
    return _number(root / "proc/vmstat", _OOM_KILLS) or 0


def _memory_cgroups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's cgroups of memory that are visible, from the innermost."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if "memory" in controllers.split(","):
            mount /= "memory"
        elif controllers:
            continue
        # In a container the path may be that of the host, of which only the root is visible.
        directory = mount / path.lstrip("/")
        while mount in directory.parents:
            yield directory
            directory = directory.parent
        yield mount


def _number(file: Path, pattern: str) -> int | None:
    try:
        found = re.search(pattern, file.read_text().strip())
    except OSError:
        return None
    return int(found[1]) if found else None
