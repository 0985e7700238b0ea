"""Processes that a CS system starts for itself: wafers of a group, and MemoryX.

They are forked from one process (`cs_system.forker`), which begins with the first of them, imports JAX, and
ends with the CS system: those that follow begin at once, where a start of their own takes half a second of a
CPU. The fork server of `multiprocessing` would do the same, but it needs a path for a socket that is shorter
than many a TMPDIR, leaves it behind when it is killed, and lets whoever asks wait for its imports.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

END_TIMEOUT_S = 5.0
UNKNOWN_CODE = 255
"""The exit code where the process that would know it is gone."""

NUMBER_BYTES = 4
"""A process tells its number, and at its end its exit code, by so many bytes each, signed, low ones first."""

Json = str | int


class _Forker:
    """The process that forks the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, order: bytes, descriptors: Sequence[int]) -> None:
        """Lets it fork a process, which gets the descriptors; does not wait for that."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            socket.send_fds(self._orders, [order], descriptors)

    def _start(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, _ctrl_c_held():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cs_system", "forker"], stdin=theirs.fileno(), start_new_session=True
            )
        weakref.finalize(self, _stop, self._orders, self._process)


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """What is started in the body does not hear Ctrl-C, not even before it has a session of its own.

    It is for the CS system, which ends what it has started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(orders: socket.socket, process: subprocess.Popen[bytes]) -> None:
    orders.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)


_forker = _Forker()


class OwnProcess:
    """A process in a session of its own. It ends with `end`, and with this process, however that ends.

    Args:
        name: What `ps -o comm` and `top` call it; of more than 15 characters Linux keeps the first ones.
        run: What it does, a function of a module; returns the exit code.
        arguments: Of the function.
        descriptors: More arguments: it gets duplicates of these.
    """

    def __init__(
        self, name: str, run: Callable[..., int], arguments: Sequence[Json], descriptors: Sequence[int] = ()
    ) -> None:
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._told, tell = os.pipe()
        lifeline, self._lifeline = os.pipe()
        os.set_blocking(self._told, False)
        weakref.finalize(self, os.close, self._told)
        self._let_go = weakref.finalize(self, os.close, self._lifeline)
        order = {"name": name, "run": [run.__module__, run.__qualname__], "arguments": list(arguments)}
        try:
            _forker.fork(json.dumps(order).encode(), [lifeline, tell, *descriptors])
        finally:
            os.close(lifeline)
            os.close(tell)

    @property
    def pid(self) -> int:
        """Of the process; waits until it is there.

        Raises:
            ChildProcessError: it could not be started.
        """
        self._hear(lambda: self._pid is not None or self._exit_code is not None, None)
        if self._pid is None:
            raise ChildProcessError("the process could not be started; its reason is on stderr")
        return self._pid

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self.exit_code is not None

    @property
    def exit_code(self) -> int | None:
        """Of one that has ended, that of a signal negative."""
        self.wait(0.0)
        return self._exit_code

    def kill(self) -> None:
        """Ends it, whatever it does, and does not wait."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended; whether it has in time."""
        return self._hear(lambda: self._exit_code is not None, timeout_s)

    def end(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Tells it to end, and waits; kills it when that takes too long."""
        self._let_go()
        if not self.wait(timeout_s):
            self.kill()
            self.wait()

    def _hear(self, enough: Callable[[], bool], timeout_s: float | None) -> bool:
        """Takes what is told of the process until that is enough; whether it is in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not enough():
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._told], [], [], left_s)[0]:
                return False
            with self._lock:
                self._take()
        return True

    def _take(self) -> None:
        if self._exit_code is not None:  # another thread has heard it
            return
        try:
            told = os.read(self._told, NUMBER_BYTES)
        except BlockingIOError:  # another thread was faster
            return
        number = int.from_bytes(told, "little", signed=True) if told else UNKNOWN_CODE
        if told and self._pid is None:
            self._pid = number
        else:
            self._exit_code = number
