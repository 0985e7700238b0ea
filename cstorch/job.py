"""The job of this process: a launcher's, or its own with the workers that it starts."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from cs_runtime import terminal
from cs_runtime.tasks import current
from csrun.tasks.roles import TaskInfo

if TYPE_CHECKING:
    from cstorch.own_workers import OwnWorkers

own_workers: list[OwnWorkers] = []
"""Those that this process has started, if any."""


def task() -> TaskInfo:
    """The part of this process in its job."""
    return own_workers[0].task if own_workers else current()


def leave_to_chief() -> None:
    """Ends a worker of a program that computes on the CPU of the chief: there is nothing to stream."""
    if task().role == "worker":
        terminal.set_up("cstorch")
        logging.getLogger("cstorch").info(
            "nothing to do for worker %d: the program runs on the CPU of the chief", task().index
        )
        sys.exit(0)
