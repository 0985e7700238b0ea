"""Worker processes of a DataLoader that ended by themselves, as errors of the analyzer."""

from __future__ import annotations

import multiprocessing
import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from input_analyzer.errors import InputAnalyzerError, InputFailedError, MemoryLimitError
from input_analyzer.measure import node

# torch/utils/data/dataloader.py and torch/csrc/DataLoader.cpp
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]+)\.")
_GONE = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) exited unexpectedly(?: with exit code (\d+))?"
)
_LOST = re.compile(r"unable to open shared memory object .*No such file")  # at::MapAllocator
_SHORT = {"Killed": "memory", "Bus error": "shared memory (/dev/shm), through which batches come"}
"""What is short where a process is ended so; names of `strsignal`."""
_CRASHES = ("Segmentation fault", "Aborted", "Illegal instruction", "Floating point exception")


@contextmanager
def told_plainly() -> Iterator[None]:
    """For a with statement in which DataLoaders are read; torch raises in it when a worker is gone.

    Raises:
        MemoryLimitError: a worker process was killed for want of memory.
        InputFailedError: one has ended otherwise.
    """
    kills = node.oom_kills()
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        plain = _plain(error, kills)
        if plain is None:
            raise
        raise plain from error
    finally:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # other workers may end while this is told


def _plain(error: Exception, kills: int | None) -> InputAnalyzerError | None:
    """What has happened, where the kernel had killed so many processes for want of memory before."""
    if not isinstance(error, RuntimeError):
        return _ended("", exited=False) if _while_fetching(error) else None
    text = f"{error} {error.__cause__ or ''}"
    if (killed := _KILLED.search(text)) is not None:
        return _killed(killed[1], killed[2], kills)
    if (gone := _GONE.search(text)) is not None:
        processes = " and ".join(f"process {number}" for number in gone[1].split(", "))
        return _ended(f" ({processes}{f', exit code {gone[2]}' if gone[2] else ''})", bool(gone[2]))
    return _ended("", exited=False) if _LOST.search(text) else None


def _while_fetching(error: Exception) -> bool:
    """Whether it is the queue of the DataLoader that failed, and nothing of the user's."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    caller = next((file for file in reversed(files) if not file.startswith(_QUEUES)), "")
    return bool(files) and files[-1].startswith(_QUEUES) and caller.startswith(_TORCH)


_QUEUES = f"{Path(multiprocessing.__file__).parent}/"
_TORCH = f"{Path(torch.__file__).parent}/"


def _ended(which: str, exited: bool) -> InputAnalyzerError:
    how = "it has called exit" if exited else "it was killed, or has called exit"
    return InputFailedError(
        f"a worker process of the DataLoader has ended by itself{which}: {how}; expected one that delivers "
        "batches: with num_workers=0 the line shows at which it ends"
    )


def _killed(process: str, by: str, kills: int | None) -> InputAnalyzerError:
    said = f"(process {process}, {by})"
    now = node.oom_kills()
    for_memory = by != "Killed" or kills is None or now is None or now > kills
    if by in _SHORT and for_memory:
        return MemoryLimitError(
            f"a worker process of the DataLoader was killed {said}, most likely for want of {_SHORT[by]}; "
            "expected a pipeline that fits: smaller batches, fewer workers (num_workers), or fewer batches "
            "made ahead (prefetch_factor)"
        )
    if by in _CRASHES:
        return InputFailedError(
            f"a worker process of the DataLoader has crashed {said}: code of a library that it calls, not "
            "of Python; expected one that delivers batches: open files and connections in the worker, not "
            "before it starts, and look with num_workers=0 where it crashes"
        )
    why = ", and not by the kernel for want of memory" if by == "Killed" else ""
    return InputFailedError(
        f"a worker process of the DataLoader was ended by somebody {said}{why}; expected one that delivers "
        "batches"
    )
