"""Signals that mean something to the user's program, such as SIGUSR1 before a time limit."""

from __future__ import annotations

import os

from csrun.processes import catching, children_of, signal_processes

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
