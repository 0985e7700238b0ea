"""Batches of torch in shared memory, of processes that cannot remove them any more."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_SHARED = Path("/dev/shm")
_OF_TORCH = re.compile(r"torch_(\d+)_")
"""torch_PID_RANDOM_COUNT: `NewProcessWideShmHandle` in torch's aten/src/ATen/MapAllocator.cpp."""


def remove_segments(pids: Collection[int]) -> None:
    """Removes what torch has in /dev/shm of processes that were killed just now.

    A process may be killed between making a segment and removing its name; with torch's sharing strategy
    "file_system" names stay for as long as a segment is used.
    """
    if not pids:
        return
    with suppress(OSError):  # there is no such folder, and then no segment
        for segment in _SHARED.iterdir():
            match = _OF_TORCH.match(segment.name)
            if match and int(match[1]) in pids:
                with suppress(OSError):
                    segment.unlink()
