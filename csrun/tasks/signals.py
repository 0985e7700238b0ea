"""Signals as data for an event loop, and the relay of signals to the user's program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from csrun.tasks.processes import children_of, find_signal_handlers, signal_processes

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# These have a meaning only for the user's program, which may request them before a time limit.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
LOOK_INTERVAL_S = 1.0


class SignalPipe:
    """While entered, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGCHLD only make `fileno()` readable.

    A signal that was ignored before remains ignored.
    """

    def __init__(self, others: Collection[signal.Signals] = ()) -> None:
        """Create the pipe; `others` are further signals to catch."""
        self._others = others
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._previous_wakeup = -1

    def __enter__(self) -> SignalPipe:
        self._previous_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in (*INTERRUPTS, *PASSED_ON, *self._others, signal.SIGCHLD):
            # An ignored signal stays ignored: a job under nohup survives the hangup.
            if signum is signal.SIGCHLD or signal.getsignal(signum) is not signal.SIG_IGN:
                # The interpreter writes the number to the pipe only if a handler exists.
                self._previous[signum] = signal.signal(signum, lambda *_: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._read_end)
        os.close(self._write_end)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._read_end

    def read(self) -> list[signal.Signals]:
        """Return the signals since the last call, in order."""
        with suppress(BlockingIOError):
            return [signal.Signals(number) for number in os.read(self._read_end, 4096)]
        return []


class SignalRelay:
    """Passes signals on to the programs below this process that have a handler for them.

    A program without a handler, because it is starting or compiling, gets the signal as soon as it has one.
    Each child of this process is one program, together with its descendants.
    """

    # Earlier, the signal would end such a program; if it were dropped, the job would lose its checkpoint.

    def __init__(self, guard_pid: int) -> None:
        """Create the relay; `guard_pid` is a child that is not a program."""
        self._guard_pid = guard_pid
        self._pending: dict[int, set[int]] = {}
        self._next_look_s = 0.0

    @property
    def waiting(self) -> bool:
        """True if a program has not got its signal yet."""
        return bool(self._pending)

    def send(self, signum: int, now_s: float) -> None:
        """Pass a signal on now, or later to programs that have no handler yet."""
        self._pending[signum] = {pid for pid in children_of(os.getpid()) if pid != self._guard_pid}
        self._next_look_s = now_s
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        """Pass pending signals on to programs that have a handler by now; checked at intervals."""
        if not self._pending or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        for signum, programs in list(self._pending.items()):
            found = find_signal_handlers(signum, programs)
            for pids in found.values():
                signal_processes(pids, signum)
            self._pending[signum] = {program for program, pids in found.items() if not pids}
            if not self._pending[signum]:
                del self._pending[signum]
