"""Signals as data that an event loop reads, and signals that are passed on to the user's program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from csrun.tasks.processes import catching, children_of, signal_processes

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""They mean something to the user's program, which may ask for them before a time limit; nothing to us."""


class SignalPipe:
    """While entered, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGCHLD only make `fileno()` readable.

    A signal that was ignored before stays so: a job under nohup survives the hangup.
    """

    def __init__(self, others: Collection[signal.Signals] = ()) -> None:
        """Args: others: signals of which the same shall hold."""
        self._others = others
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._previous_wakeup = -1

    def __enter__(self) -> SignalPipe:
        self._previous_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in (*INTERRUPTS, *PASSED_ON, *self._others, signal.SIGCHLD):
            if signum is signal.SIGCHLD or signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, _note)
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
        """The descriptor to wait for."""
        return self._read_end

    def read(self) -> list[signal.Signals]:
        """The signals that have come since the last call, in their order."""
        with suppress(BlockingIOError):
            return [signal.Signals(number) for number in os.read(self._read_end, 4096)]
        return []


def _note(signum: int, frame: FrameType | None) -> None:
    """The interpreter writes the number to the pipe; a handler has to exist for that."""


LOOK_INTERVAL_S = 1.0


class SignalRelay:
    """Passes signals on to the programs below this process that have a handler for them.

    A program that has none yet, because it is being started or still compiles, gets the signal as soon as it
    has: it would end by it before, and a request that was dropped would cost the job its checkpoint. Every
    child of this process counts as one program, with all that is below it.
    """

    def __init__(self, guard_pid: int) -> None:
        """Args: guard_pid: the child that is no program."""
        self._guard_pid = guard_pid
        self._owed: dict[int, set[int]] = {}
        self._look_at_s = 0.0

    @property
    def waiting(self) -> bool:
        """Whether some program has not got its signal yet."""
        return bool(self._owed)

    def send(self, signum: int, now_s: float) -> None:
        """Passes a signal on; what nobody takes now is kept."""
        self._owed[signum] = {pid for pid in children_of(os.getpid()) if pid != self._guard_pid}
        self._look_at_s = now_s
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        """Looks again, at intervals, who has a handler by now."""
        if not self._owed or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_INTERVAL_S
        for signum, programs in list(self._owed.items()):
            found = catching(signum, programs)
            for pids in found.values():
                signal_processes(pids, signum)
            self._owed[signum] = {program for program, pids in found.items() if not pids}
            if not self._owed[signum]:
                del self._owed[signum]
