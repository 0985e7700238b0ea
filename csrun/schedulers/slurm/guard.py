"""Ends srun when the launcher has been killed and cannot do it any more."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from csrun.jobs.record import start_ticks
from csrun.tasks.processes import detach

AGENTS_LIMIT_S = 20.0
"""Agents notice the launcher's death themselves, end their tasks properly, and srun with that."""
SRUN_LIMIT_S = 5.0
POLL_S = 0.1


class SrunGuard:
    """A process that outlives a launcher that was killed. Start it before any thread.

    srun itself must not get a signal then while tasks run: Slurm would kill all of their processes at once,
    and the agents with them, so that what is born in that moment would survive.

    Args:
        srun: pid of our child.
        close: descriptors that the guard must not hold open.
    """

    def __init__(self, srun: int, close: Iterable[int]) -> None:
        read_end, self._write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write_end)
                for descriptor in close:
                    os.close(descriptor)
                detach()
                _guard(read_end, srun, start_ticks(srun))
            finally:
                os._exit(0)
        os.close(read_end)

    def tasks_run(self) -> None:
        """From now on agents have tasks to end."""
        self._write(b"r")

    def dismiss(self) -> None:
        """Ends the guard; srun has ended."""
        self._write(b".")
        os.close(self._write_end)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._write_end, data)


def _guard(read_end: int, srun: int, ticks: int | None) -> None:
    running = False
    while said := os.read(read_end, 1):
        if said == b".":
            return
        running = True

    def lives() -> bool:
        # A pid alone may belong to another process by now.
        return ticks is not None and start_ticks(srun) == ticks

    if running:
        _wait_while(lives, AGENTS_LIMIT_S)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if lives():
            with suppress(ProcessLookupError):
                os.kill(srun, signum)
            _wait_while(lives, SRUN_LIMIT_S)


def _wait_while(condition: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while condition() and time.monotonic() < end_s:
        time.sleep(POLL_S)
