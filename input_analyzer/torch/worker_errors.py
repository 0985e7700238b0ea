"""Worker processes that ended by themselves, as errors of the analyzer."""

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

# torch/utils/data/dataloader.py and torch/csrc/DataLoader.cpp
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]+)\.")
_GONE = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) exited unexpectedly(?: with exit code (\d+))?"
)
_LOST = re.compile(r"unable to open shared memory object .*No such file")  # at::MapAllocator


@contextmanager
def told_plainly() -> Iterator[None]:
    """For a with statement in which DataLoaders are read.

    Wherever the process is, torch raises when it hears that a worker is gone, and so does whoever fetches a
    batch whose tensors went with it. In the end it listens no more: others may end while this is told.

    Raises:
        MemoryLimitError: a worker process was killed, or found no room in shared memory.
        InputFailedError: one has crashed or ended.
    """
    try:
        try:
            yield
        finally:
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except Exception as error:
        plain = _plain(error)
        if plain is None:
            raise
        raise plain from error


def _plain(error: BaseException) -> InputAnalyzerError | None:
    if isinstance(error, OSError | EOFError):
        return _gone() if _while_fetching(error) else None
    if not isinstance(error, RuntimeError):
        return None
    text = f"{error} {error.__cause__ or ''}"
    if (killed := _KILLED.search(text)) is not None:
        return _killed(*killed.groups())
    if (gone := _GONE.search(text)) is not None:
        return _gone(*gone.groups())
    return _gone() if _LOST.search(text) else None


def _while_fetching(error: BaseException) -> bool:
    """Whether it is the queue of the DataLoader that failed, and nothing of the user's."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    caller = next((file for file in reversed(files) if not file.startswith(_QUEUES)), "")
    return bool(files) and files[-1].startswith(_QUEUES) and caller.startswith(_TORCH)


_QUEUES = f"{Path(multiprocessing.__file__).parent}/"
_TORCH = f"{Path(torch.__file__).parent}/"


def _gone(process: str = "", code: str | None = None) -> InputFailedError:
    facts = ", ".join(filter(None, (process and f"process {process}", code and f"exit code {code}")))
    killed = "" if code else "it was killed, most likely for want of memory, or "
    return InputFailedError(
        f"a worker process of the DataLoader has ended by itself{facts and f' ({facts})'}: {killed}it has "
        "called exit; expected one that delivers batches"
    )


def _killed(process: str, by: str) -> InputAnalyzerError:
    which = f"(process {process}, {by})"
    if by in _WANTS:
        return MemoryLimitError(
            f"a worker process of the DataLoader was killed {which}, most likely for want of {_WANTS[by]}; "
            "expected a pipeline that fits: smaller batches, fewer workers (num_workers), or fewer batches "
            "made ahead (prefetch_factor)"
        )
    if by in _CRASHES:
        return InputFailedError(
            f"a worker process of the DataLoader has crashed {which}: code of a library that it calls, not "
            "of Python; expected one that delivers batches: open files and connections in the worker, not "
            "before it starts, try multiprocessing_context='spawn', and look with num_workers=0 where it "
            "crashes"
        )
    return InputFailedError(
        f"a worker process of the DataLoader was ended by somebody {which}; expected one that delivers "
        "batches"
    )


_WANTS = {"Killed": "memory", "Bus error": "shared memory (/dev/shm), through which batches come"}
_CRASHES = ("Segmentation fault", "Aborted", "Illegal instruction", "Floating point exception")
"""As strsignal names them."""
