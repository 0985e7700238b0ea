"""What happens when a program has configured its run: logs, how it ends, and what a worker does instead."""

from __future__ import annotations

import atexit
import os
import signal
from functools import cache

from cs_runtime import exits, terminal
from cs_runtime.checkpoint_requests import CheckpointRequests
from cs_runtime.embedded_system import EmbeddedSystem
from cstorch.config import configuration
from cstorch.errors import essence
from cstorch.input.workers import OwnWorkers, job_directory, job_files, serve_and_leave
from cstorch.job import own_workers, task
from cstorch.loop import base
from input_rules.input_export import export_requested

checkpoint_requests = CheckpointRequests()
"""SIGUSR1 asks a program for a checkpoint, unless it takes that signal itself."""


def start_process(start_system: bool = True) -> None:
    """Makes this process a chief of its job, or a worker, which does not return.

    Args:
        start_system: A simulated system starts now, where the program has named none.
    """
    _set_up()
    if export_requested():
        return  # an analysis takes the input over where the first loop begins
    if task().role == "worker":
        serve_and_leave()
    if task().num_tasks > 1:
        atexit.register(job_files(task()).end)
    start_workers()
    take_requests()
    if start_system and _runs() and not _named_system():
        _own_system(configuration().num_csx)  # it starts while the program makes its model


def start_workers() -> None:
    """Starts the workers that the program wants, where neither a launcher nor an earlier call has."""
    number = configuration().num_workers_per_csx
    if number > 1 and task().num_tasks == 1 and _runs() and not export_requested():
        own_workers.append(OwnWorkers(number, job_directory(task()), task()))


def _runs() -> bool:
    config = configuration()
    return not (config.compile_only or config.validate_only)


def start_session() -> None:
    """Makes this process a chief or a worker of a job whose tasks all go through the program."""
    _set_up()
    take_requests()


def _set_up() -> None:
    terminal.configure_logging("cstorch")
    exits.report_at_exit(base.tell, essence)


def take_requests() -> None:
    """SIGUSR1 asks for a checkpoint from here on, unless the program takes that signal itself."""
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        checkpoint_requests.__enter__()


def system_address() -> str | None:
    """The CS system of the run; None where the program is only compiled and names none."""
    config, named = configuration(), _named_system()
    if named or config.compile_only or config.validate_only:
        return named
    return _own_system(config.num_csx).address


def _named_system() -> str | None:
    return configuration().mgmt_address or os.environ.get("CS_IP") or None


@cache
def _own_system(num_csx: int) -> EmbeddedSystem:
    name = "cs_system.log" if num_csx == 1 else f"cs_system_{num_csx}.log"
    return EmbeddedSystem(configuration().model_dir / name, num_csx)
