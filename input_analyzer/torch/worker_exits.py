"""Worker processes in which the user's code calls `sys.exit`, or raises something else that is no Exception.

torch lets such a process end: only Exceptions are sent to the process that reads, and a KeyboardInterrupt is
swallowed. Here all of it is sent, with the user's lines.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import _DatasetKind
from torch.utils.data._utils import worker

from input_analyzer.errors import InputFailedError
from input_analyzer.measure.traces import users_frames

_TORCHS_LOOP = worker._worker_loop


@contextmanager
def telling_exits() -> Iterator[None]:
    """While it is open DataLoaders start worker processes that tell why they would end.

    Who reads a batch of such a loader gets InputFailedError.
    """
    worker._worker_loop = _loop
    try:
        yield
    finally:
        worker._worker_loop = _TORCHS_LOOP


class Exit(ExceptionWrapper):  # type: ignore[misc,unused-ignore]
    """Comes in the place of a batch from a worker process that would have ended.

    Args:
        error: What would have ended it; its traceback has the user's lines.
        number: Of the worker in its DataLoader, from 0 on.
    """

    def __init__(self, error: BaseException, number: int) -> None:
        code, done = _done(error)
        lines = users_frames(error)
        where = f"; it is here:\n{lines}" if lines else ""
        self.text = (
            f"a worker process of the DataLoader has ended by itself (worker {number}, process "
            f"{os.getpid()}{code}): it has {done}; expected one that delivers batches{where}"
        )

    def reraise(self) -> None:
        """What torch calls where the batch is read.

        Raises:
            InputFailedError: always.
        """
        raise InputFailedError(self.text)


def _done(error: BaseException) -> tuple[str, str]:
    """With what exit code, and by what, an error ends a process."""
    if not isinstance(error, SystemExit):
        return "", f"raised {type(error).__name__}"
    if error.code is None or isinstance(error.code, int):
        return f", exit code {error.code or 0}", "called exit"
    return ", exit code 1", f"called exit({error.code!r})"


def _loop(*arguments: Any, **named: Any) -> None:
    """What a worker process does: `_worker_loop` of torch."""
    bound = inspect.signature(_TORCHS_LOOP).bind(*arguments, **named).arguments
    number, dataset, begin = bound["worker_id"], bound["dataset"], bound["init_fn"]
    create = _DatasetKind.create_fetcher
    ended: list[Exit] = []

    def begin_told(index: int) -> None:
        made = _told(number, lambda: begin(index))
        if isinstance(made, Exit):
            ended.append(made)

    def create_told(kind: Any, source: Any, *settings: Any) -> Any:
        if source is not dataset:  # another DataLoader within this process
            return create(kind, source, *settings)
        made = ended[0] if ended else _told(number, lambda: create(kind, source, *settings))
        return _Fetcher(made, number)

    _DatasetKind.create_fetcher = staticmethod(create_told)  # of this process
    if begin is not None:
        bound["init_fn"] = begin_told
    _TORCHS_LOOP(**bound)


class _Fetcher:
    """Makes batches as torch's own does; an Exit in the place of one that ends the process."""

    def __init__(self, fetcher: Any, number: int) -> None:
        self._fetcher, self._number = fetcher, number

    def fetch(self, index: Any) -> Any:
        if isinstance(self._fetcher, Exit):
            return self._fetcher
        return _told(self._number, lambda: self._fetcher.fetch(index))


def _told(number: int, work: Callable[[], Any]) -> Any:
    """What work returns; an Exit where it would end the process."""
    try:
        return work()
    except Exception:
        raise  # torch sends it
    except BaseException as error:
        return Exit(error, number)
