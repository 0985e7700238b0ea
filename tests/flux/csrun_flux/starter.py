"""The `flux run` of a job: a parser of its messages, and Flux's view of the job while it runs."""

from __future__ import annotations

import re
import signal
from contextlib import suppress

from csrun.agent.starter import Starter
from csrun_flux.client import FluxClient, FluxError, explain, shorten_error
from csrun_flux.place import ascii_id
from csrun_flux.queue import news, wait_sentence

SUSPENDED_LIMIT_S = 3.0

_JOB = re.compile(r"^jobid: (\S+)")
_EXCEPTION = re.compile(r"job\.exception \S+ type=(\S+) severity=0 ?(.*)")
_REPORTED_BY_AGENTS = re.compile(r"^flux-job: task\(s\) |^jobid: |one more ctrl-C|job is not running")
_CAUSES = {"timeout": "time limit", "cancel": "cancellation"}


class FluxRunStarter(Starter):
    """The `flux run` that starts the agents."""

    title = "Flux"
    command = "flux"
    endings = "flux cancel, a time limit or a lost node"
    queue_command = "flux jobs"
    # flux run passes SIGTERM on to the tasks, and ignores it while the job waits; a second SIGINT cancels it.
    end_signals = (signal.SIGINT, signal.SIGINT)

    def __init__(self, client: FluxClient) -> None:
        super().__init__()
        self._client = client

    def parse(self, line: str) -> None:
        """Update the attributes from a line of `flux run --verbose`."""
        if found := _JOB.search(line):
            self.job_id = ascii_id(found[1])
        if found := _EXCEPTION.search(line):
            lost = found[2].startswith("node failure")  # an exception of the type "exec"
            self.cancel_reason = "node failure" if lost else _CAUSES.get(found[1], "")
            self.withdrawn = found[1] == "cancel"
            self.task_failed = found[1] == "exec"
        if "task(s)" in line:
            self.task_failed = True

    def is_redundant(self, line: str, ending: bool) -> bool:
        """Return True for the id, the end of tasks, and a cancellation that is ours."""
        return bool(_REPORTED_BY_AGENTS.search(line)) or (ending and "type=cancel" in line)

    def summary(self) -> str:
        """Return the last lines in one short line."""
        return shorten_error(self.text)

    def refusal(self) -> FluxError:
        """Return the error that the lines explain."""
        return explain("run", self.text)

    def is_suspended(self, job_id: str) -> bool:
        """Return False: Flux suspends no jobs."""
        return False

    def cancel(self, job_id: str, limit_s: float) -> None:
        """Run flux cancel, for the inner job of "OUTER.INNER"."""
        with suppress(FluxError):
            self._client.cancel(job_id.rpartition(".")[2], limit_s=limit_s)

    def wait_sentence(self) -> str:
        """Return why the job waits, from flux jobs."""
        return wait_sentence(self.job_id, self._client.jobs()) if self.job_id else ""

    def wait_news(self, sentence: str) -> str:
        """Return the sentence without the expected start."""
        return news(sentence)
