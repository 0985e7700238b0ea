"""How jobs of this machine fare, and how they are told to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from csrun.jobs.registry import KnownJob
from csrun.jobs.state import QueueView
from csrun.jobs.status import end_launcher


def views() -> dict[str, QueueView]:
    """None: a job's record and its launcher say everything."""
    return {}


def cancel(job: KnownJob, record: Mapping[str, Any]) -> None:
    """Tells the launcher to end.

    Raises:
        CsrunError: it is not a living process of this machine.
    """
    end_launcher(job, record)
