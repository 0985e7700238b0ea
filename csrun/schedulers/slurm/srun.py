"""The srun of a job: a parser of its messages, and Slurm's view of the job while it runs."""

from __future__ import annotations

import re
from contextlib import suppress

from csrun.agent.starter import Starter
from csrun.schedulers.slurm.client import SlurmClient, SlurmError, explain, shorten_error
from csrun.schedulers.slurm.queue import news, waiting

SUSPENDED_LIMIT_S = 3.0  # of the query whether Slurm has suspended the job

_JOB = re.compile(r"\bjob (\d+) (?:queued and waiting|has been allocated)|Granted job allocation (\d+)")
_TASK_FAILED = re.compile(r"task[s ].*: (?:Exited with exit code|Killed|Terminated|Out Of Memory)|execve\(\)")
_WITHDRAWN = re.compile(
    r"Job has been cancelled|has been revoked|Job cancelled|Force Terminated (?:job |JobId=)"
)
_REASON = re.compile(r"CANCELLED AT \S+ DUE TO (.+?)(?:, SEE .*)? \*\*\*")
# The agents report the end of their tasks earlier and in more detail.
_REPORTED_BY_AGENTS = re.compile(
    r"task[s ].*: (?:Exited with exit code|Terminated|Killed)|Job step aborted|Terminating \w*Step"
    r"|Force Terminated|forcing job termination|\*\*\* (?:STEP|JOB)|interrupt \(one more"
)


class SrunStarter(Starter):
    """The srun that starts the agents.

    Args:
        client: of the cluster.
        name: of the job in the queue; other jobs may have the same one.
        resource: the generic resource or license of the CS system; "" for none.
        owner: the node that holds the CS system, if the site names it.
    """

    title = "Slurm"
    command = "srun"
    endings = "scancel, a time limit or preemption"
    queue_command = "squeue"

    def __init__(self, client: SlurmClient, name: str = "", resource: str = "", owner: str = "") -> None:
        super().__init__()
        self._client = client
        self._name = name
        self._resource = resource
        self._owner = owner

    def parse(self, line: str) -> None:
        """Update the attributes from a line of srun's stderr."""
        found = _JOB.search(line)
        if found and not self.job_id:
            self.job_id = found[1] or found[2]
        if _TASK_FAILED.search(line):
            self.task_failed = True
        if _WITHDRAWN.search(line):
            self.withdrawn = True
        reason = _REASON.search(line)
        if reason:
            self.cancel_reason = reason[1].lower()

    def is_redundant(self, line: str, ending: bool) -> bool:
        """Return True for a line about the end of tasks."""
        return bool(_REPORTED_BY_AGENTS.search(line)) and (ending or "exit code" in line)

    def summary(self) -> str:
        """Return the last lines in one short line."""
        return shorten_error(self.text)

    def refusal(self) -> SlurmError:
        """Return the error that the lines explain."""
        return explain("srun", self.text)

    def is_suspended(self, job_id: str) -> bool:
        """Return True if squeue lists the job as suspended."""
        try:
            jobs = self._client.jobs(job_id, limit_s=SUSPENDED_LIMIT_S)
        except SlurmError:
            return False
        return any(job.state == "SUSPENDED" for job in jobs)

    def cancel(self, job_id: str, limit_s: float) -> None:
        """Run scancel."""
        with suppress(SlurmError):
            self._client.run("scancel", job_id, limit_s=limit_s)

    def wait_sentence(self) -> str:
        """Return why the job waits, from squeue and sinfo."""
        named = [job for job in self._client.jobs(name=self._name) if job.active]
        components = [job for job in named if self.job_id in ("", job.job_id)]
        if not any(component.pending for component in components):
            return ""
        nodes = self._client.nodes()
        found = waiting(components, self._client.queue(), self._resource, nodes, self._owner)
        return found.sentence() if found else ""

    def wait_news(self, sentence: str) -> str:
        """Return the sentence without the expected start."""
        return news(sentence)
