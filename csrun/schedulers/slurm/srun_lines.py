"""What srun writes: what it tells about the job, and which lines the user should see. Pure."""

from __future__ import annotations

import re
from collections import deque

from csrun.jobs.output import LineSplitter
from csrun.schedulers.slurm.errors import shortened_complaint

KEPT_LINES = 50

_JOB = re.compile(r"\bjob (\d+) (?:queued and waiting|has been allocated)|Granted job allocation (\d+)")
_TASK_FAILED = re.compile(r"task[s ].*: (?:Exited with exit code|Killed|Terminated|Out Of Memory)|execve\(\)")
_WITHDRAWN = re.compile(
    r"Job has been cancelled|has been revoked|Job cancelled|Force Terminated (?:job |JobId=)"
)
_REASON = re.compile(r"CANCELLED AT \S+ DUE TO (.+?)(?:, SEE .*)? \*\*\*")
# The agents say better, and first, how their tasks have ended.
_KNOWN_BETTER = re.compile(
    r"task[s ].*: (?:Exited with exit code|Terminated|Killed)|Job step aborted|Terminating \w*Step"
    r"|Force Terminated|forcing job termination|\*\*\* (?:STEP|JOB)|interrupt \(one more"
)


class SrunLines:
    """Takes srun's stderr.

    Attributes:
        job_id: Slurm's number of the job; "" until srun has said it.
        task_failed: it has reported the end of a task.
        withdrawn: the job was cancelled before it had nodes.
        cancel_reason: why Slurm has ended the job, as far as it says that: "time limit".
    """

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self.job_id = ""
        self.task_failed = False
        self.withdrawn = False
        self.cancel_reason = ""

    @property
    def text(self) -> str:
        """The last lines."""
        return "\n".join(self._kept)

    @property
    def last_words(self) -> str:
        """The last lines in short."""
        return shortened_complaint(self.text)

    def feed(self, data: bytes, ending: bool) -> list[bytes]:
        """Takes a piece of the stream; the lines to show, without srun's name.

        Args:
            data: what has come.
            ending: the job is being ended, and srun's comments on that are of no use.
        """
        shown = []
        for line, whole in self._splitter.feed(data):
            text = line.decode(errors="replace")
            self._kept.append(text)
            self._learn(text)
            if whole and not (_KNOWN_BETTER.search(text) and (ending or "exit code" in text)):
                shown.append(line.removeprefix(b"srun: "))
        return shown

    def _learn(self, text: str) -> None:
        found = _JOB.search(text)
        if found and not self.job_id:
            self.job_id = found[1] or found[2]
        if _TASK_FAILED.search(text):
            self.task_failed = True
        if _WITHDRAWN.search(text):
            self.withdrawn = True
        reason = _REASON.search(text)
        if reason:
            self.cancel_reason = reason[1].lower()
