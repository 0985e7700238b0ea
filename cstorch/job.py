"""The job of this process: a launcher's, or its own with the workers that it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs_runtime.tasks import current
from csrun.roles import TaskInfo

if TYPE_CHECKING:
    from cstorch.own_workers import OwnWorkers

own_workers: list[OwnWorkers] = []
"""Those that this process has started, if any."""


def task() -> TaskInfo:
    """The part of this process in its job."""
    return own_workers[0].task if own_workers else current()
