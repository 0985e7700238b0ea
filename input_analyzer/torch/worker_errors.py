"""Worker processes that ended by themselves, as errors of the analyzer."""

from __future__ import annotations

import gc
import multiprocessing
import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import dataloader

from input_analyzer.errors import InputAnalyzerError, InputFailedError, MemoryLimitError
from input_analyzer.measure import node
from input_analyzer.torch.worker_exits import telling_exits

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
    kills = node.oom_kills()
    try:
        try:
            with telling_exits():
                yield
        finally:
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except Exception as error:
        plain = _plain(error, kills)
        if plain is None:
            raise
        raise plain from error


def _plain(error: BaseException, kills: int | None = None) -> InputAnalyzerError | None:
    """What has happened, where the kernel had killed so many processes for want of memory before."""
    if isinstance(error, OSError | EOFError):
        return _gone(kills) if _while_fetching(error) else None
    if not isinstance(error, RuntimeError):
        return None
    text = f"{error} {error.__cause__ or ''}"
    if (killed := _KILLED.search(text)) is not None:
        process, by = killed.groups()
        return _killed(_which([int(process)]), by, kills)
    if (gone := _GONE.search(text)) is not None:
        return _gone(kills, [int(process) for process in gone[1].split(",")], gone[2])
    return _gone(kills) if _LOST.search(text) else None


def _while_fetching(error: BaseException) -> bool:
    """Whether it is the queue of the DataLoader that failed, and nothing of the user's."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    caller = next((file for file in reversed(files) if not file.startswith(_QUEUES)), "")
    return bool(files) and files[-1].startswith(_QUEUES) and caller.startswith(_TORCH)


_QUEUES = f"{Path(multiprocessing.__file__).parent}/"
_TORCH = f"{Path(torch.__file__).parent}/"


@dataclass(frozen=True)
class _Worker:
    """A worker process: its number in its DataLoader, and with what code it has ended, None if it has not."""

    number: int
    code: int | None


def _workers() -> dict[int, _Worker]:
    """By process id those of all loaders that are being read."""
    found: dict[int, _Worker] = {}
    for one in gc.get_objects():
        if type(one) is dataloader._MultiProcessingDataLoaderIter and not getattr(one, "_shutdown", True):
            for number, process in enumerate(one._workers):
                found[process.pid] = _Worker(number, process.exitcode)
    return found


def _which(processes: list[int]) -> str:
    """`worker 1, process 4711`, of one whose number is known."""
    known = _workers()
    numbered = [f"worker {known[process].number}, " if process in known else "" for process in processes]
    shown = [f"{number}process {process}" for number, process in zip(numbered, processes, strict=True)]
    return " and ".join(shown)


def _gone(
    kills: int | None, processes: list[int] | None = None, code: str | None = None
) -> InputAnalyzerError:
    """A worker process is no more; torch knows which, or that it is one of all."""
    known = _workers()
    if processes is None:
        processes = [process for process, worker in known.items() if worker.code]
    codes = {known[process].code for process in processes if process in known}
    seen = next(iter(codes)) if len(codes) == 1 else None
    if seen is not None and seen < 0:
        return _killed(_which(processes), signal.strsignal(-seen) or f"signal {-seen}", kills)
    code = code or (None if seen is None else str(seen))
    facts = ", ".join(filter(None, (_which(processes), code and f"exit code {code}")))
    why = (
        "most likely for want of memory" if _for_memory(kills) else "and not by the kernel for want of memory"
    )
    killed = "" if code else f"it was killed, {why}, or "
    return InputFailedError(
        f"a worker process of the DataLoader has ended by itself{facts and f' ({facts})'}: {killed}it has "
        "called exit; expected one that delivers batches"
    )


def _for_memory(kills: int | None) -> bool:
    """Whether the kernel has killed more processes than these for want of memory, or may have."""
    now = node.oom_kills()
    return kills is None or now is None or now > kills


def _killed(which: str, by: str, kills: int | None) -> InputAnalyzerError:
    which = f"({which}, {by})"
    if by == "Killed" and not _for_memory(kills):
        return InputFailedError(
            f"a worker process of the DataLoader was killed {which}, and not by the kernel for want of "
            "memory; expected one that delivers batches"
        )
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
