"""Worker processes that ended by themselves, as errors of the analyzer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from input_analyzer.errors import InputFailedError, MemoryLimitError

# torch/utils/data/dataloader.py and torch/csrc/DataLoader.cpp
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]+)\.")
_GONE = re.compile(r"DataLoader worker \(pid\(s\) ([\d, ]+)\) exited unexpectedly")


@contextmanager
def told_plainly(loader: Any) -> Iterator[None]:
    """For a with statement in which a DataLoader is read.

    Raises:
        MemoryLimitError: a worker process was killed, or found no room in shared memory.
        InputFailedError: one is gone, and torch does not know why.
    """
    try:
        yield
    except (ConnectionError, EOFError) as error:
        # What a worker raises itself comes with this word; else it was gone when its tensors were fetched.
        if not loader.num_workers or "DataLoader worker process" in str(error):
            raise
        raise _gone("") from error
    except RuntimeError as error:
        text = f"{error} {error.__cause__ or ''}"
        killed, gone = _KILLED.search(text), _GONE.search(text)
        if gone is not None and killed is None:
            raise _gone(f" (process {gone[1]})") from error
        if killed is None or killed[2] not in _WANTS:
            raise
        raise MemoryLimitError(
            f"a worker process of the DataLoader was killed (process {killed[1]}, {killed[2]}), most "
            f"likely for want of {_WANTS[killed[2]]}; expected a pipeline that fits: smaller batches, fewer "
            "workers (num_workers), or fewer batches made ahead (prefetch_factor)"
        ) from error


def _gone(which: str) -> InputFailedError:
    return InputFailedError(
        f"a worker process of the DataLoader has ended by itself{which}: it was killed, most likely for want "
        "of memory, or it has called exit; expected one that delivers batches"
    )


_WANTS = {"Killed": "memory", "Bus error": "shared memory (/dev/shm), through which batches come"}
