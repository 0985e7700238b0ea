"""The process that has started a job and stays until its end: whether it lives, and how it is told to end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from csrun.errors import CsrunError
from csrun.job_registry import KnownJob
from csrun.jobs import start_ticks


def launcher_lives(record: Mapping[str, Any] | None) -> bool | None:
    """Whether the launcher that has written the record is there; None where that cannot be seen from here."""
    if not record or record.get("host") != socket.gethostname():
        return None
    ticks = record.get("launcher_start_ticks")
    return ticks is not None and start_ticks(int(record.get("launcher_pid") or 0)) == ticks


def end_launcher(job: KnownJob, record: Mapping[str, Any]) -> None:
    """Sends SIGTERM to the launcher, which then ends its job.

    Raises:
        CsrunError: it is not a living process of this machine.
    """
    if not launcher_lives(record):
        host = record.get("host", "another machine")
        raise CsrunError(
            f"job {job.job_id} runs on {host}; expected to be called there: a local job can be ended only on "
            f"its own machine"
        )
    os.kill(int(record["launcher_pid"]), signal.SIGTERM)
