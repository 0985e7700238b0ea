"""Replaces the launcher by one program on this machine.

Separate from `run`, because every `csrun_cpu` starts here and needs none of the modules of a job.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from csrun.console import flush_standard_streams
from csrun.schedulers.base import ProgramPlan
from csrun.tasks.command import find_command, start_error


def run_program(plan: ProgramPlan) -> NoReturn:
    """Replace this process by the program.

    Raises:
        CsrunError: the program does not exist or cannot be executed.
    """
    file = find_command(plan.words[0], plan.environment["PATH"])
    flush_standard_streams()
    # Python ignores these two, and ignored signals remain ignored across exec: `csrun_cpu yes | head` would
    # report a broken pipe instead of ending.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execve(file, plan.words, plan.environment)
    except OSError as error:
        raise start_error(plan.words[0], error) from error
