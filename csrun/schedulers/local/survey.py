"""Looks at this machine before the layout of a job is decided."""

from __future__ import annotations

import os

from csrun.schedulers.base import Asked, Survey
from csrun.tasks.command import require_container


def survey(asked: Asked) -> Survey:
    """The site's defaults, and the CPUs that this process may use.

    Raises:
        CsrunError: the site's container cannot be used here.
    """
    if not asked.dry_run:
        require_container(asked.site, asked.environment.get("PATH", ""))
    return Survey(asked.site, len(os.sched_getaffinity(0)))
