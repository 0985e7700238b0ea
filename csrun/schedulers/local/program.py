"""One program on this machine, in place of the launcher."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from csrun.console import flush_standard_streams
from csrun.schedulers.base import Asked, ProgramPlan, ProgramRequest
from csrun.tasks.command import find_command, require_container, start_refused


def plan_program(request: ProgramRequest, asked: Asked) -> ProgramPlan:
    """The program as it was given.

    Raises:
        CsrunError: the site's container cannot be used here.
    """
    if not asked.dry_run:
        require_container(asked.site, asked.environment.get("PATH", ""))
    return ProgramPlan(request.command, request.environment, "on this machine")


def run_program(plan: ProgramPlan) -> NoReturn:
    """Makes this process the program.

    Raises:
        CsrunError: there is no such program, or it cannot be executed.
    """
    file = find_command(plan.words[0], plan.environment["PATH"])
    flush_standard_streams()
    # Python ignores these two, and an ignored signal stays ignored across exec: `csrun_cpu yes | head` would
    # complain about a broken pipe instead of ending.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execve(file, plan.words, plan.environment)
    except OSError as error:
        raise start_refused(plan.words[0], error) from error
