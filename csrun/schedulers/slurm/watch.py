"""Looks after a waiting job in a thread of its own: a controller that hangs must not hold up the launcher."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from csrun.jobs.status import WaitLines
from csrun.schedulers.slurm.client import QueuedJob, SlurmClient
from csrun.schedulers.slurm.errors import SlurmError
from csrun.schedulers.slurm.queue import news, waiting

FIRST_LOOK_S = 1.0
LOOK_INTERVAL_S = 5.0


class QueueWatch:
    """Asks every few seconds why a job waits, and keeps a line for every change, and one every ten seconds.

    Args:
        client: the cluster.
        name: the job's name; it need not be submitted yet.
        number: the job's number, by which it is told from others of its name; "" while it is not known.
        owner: the node that holds the CS system, where the site says so.
        resource: what stands for the CS system, as for `csrun.schedulers.slurm.queue.waiting`.
    """

    def __init__(
        self, client: SlurmClient, name: str, resource: str, number: Callable[[], str] = str, owner: str = ""
    ) -> None:
        self._client = client
        self._number = number
        self._owner = owner
        self._name = name
        self._resource = resource
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._job: QueuedJob | None = None
        self._thread = threading.Thread(target=self._look, name="queue watch", daemon=True)
        self._thread.start()

    @property
    def job(self) -> QueuedJob | None:
        """The job's leader as last seen; None while Slurm does not know the name."""
        return self._job

    def lines(self) -> list[str]:
        """What is new since the last call, one line each."""
        found = []
        while True:
            try:
                found.append(self._lines.get_nowait())
            except queue.Empty:
                return found

    def stop(self) -> None:
        """Ends the watch; a question on its way is not waited for."""
        self._ended.set()

    def _look(self) -> None:
        due = WaitLines()
        pause_s = FIRST_LOOK_S
        while not self._ended.wait(pause_s):
            pause_s = LOOK_INTERVAL_S
            try:
                line = self._line()
            except SlurmError as error:
                line = str(error)
            if told := due.line(line, news(line), time.monotonic()):
                self._lines.put(told)

    def _line(self) -> str:
        number = self._number()
        named = [job for job in self._client.jobs(name=self._name) if job.active]
        components = [job for job in named if number in ("", job.job_id)]
        self._job = components[0] if components else self._job
        if not any(component.pending for component in components):
            return ""
        nodes = self._client.nodes()
        found = waiting(components, self._client.queue(), self._resource, nodes, self._owner)
        return found.sentence() if found else ""
