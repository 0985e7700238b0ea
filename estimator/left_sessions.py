"""TensorFlow sessions that nobody waits for: those of inputs whose batches are not needed any more.

Closing a session waits for what its dataset is doing. A shuffle that fills its buffer of 10 million elements
takes 9 s, a map whose function takes 5 s takes 5 s; and at the end of the process TensorFlow waits once more.
So a session is left open. The next input that is read closes it. A process that ends first ends without
it: the C library's `exit` is cut short, after all that Python does at its end.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from cs_toolkit.garbage import leave_at_exit

_left: list[Any] = []
_lock = threading.Lock()


def leave(session: Any) -> None:
    """Nobody needs the session any more, and nobody waits for its end."""
    _cut_exit_short()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))  # else Python's end would close it, and wait
    with _lock:
        _left.append(session)


class LeavingCreator:
    """Creates sessions for a monitored one, which leaves them where it would close them.

    It has the method of `tf.compat.v1.train.SessionCreator`.
    """

    def __init__(self, creator: Any) -> None:
        self._creator = creator

    def create_session(self) -> Any:
        """A session."""
        session = self._creator.create_session()

        def close() -> None:
            del session.close  # from now on it is TensorFlow's
            leave(session)

        session.close = close
        return session


def close_left() -> None:
    """Closes what was left, beside the caller: the process goes on."""
    with _lock:
        sessions, _left[:] = list(_left), []
    if sessions:
        # No daemon: TensorFlow aborts a process whose interpreter ends while a thread is in such a call.
        threading.Thread(target=_close, args=(sessions,), name="close-sessions").start()


def _close(sessions: list[Any]) -> None:
    for session in sessions:
        session.close()
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(session))


@cache
def _cut_exit_short() -> None:
    """Has the process end with its exit code before TensorFlow's own part of its end; glibc can do that."""
    leave_at_exit()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)  # comes before, as it is registered behind
