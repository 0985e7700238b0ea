"""Starts a planned job: a socket for the agents, the scheduler's command that starts them, and its guard.

`job_loop` supervises the job from there.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from shlex import join

from csrun.agent.admission import MAX_UNAUTHENTICATED_PEERS
from csrun.agent.job_loop import (
    AGENTS_LIMIT_S,
    COMMAND_LIMIT_S,
    EXITS_DIR,
    JobLoop,
)
from csrun.agent.plan import AgentPlan
from csrun.agent.starter import Starter
from csrun.console import STDERR, occupy_closed_descriptors, write_text
from csrun.errors import CsrunError, StartError
from csrun.jobs.output import describe_tasks
from csrun.jobs.record import known_job, prepare_log_dir, start_ticks
from csrun.jobs.registry import register
from csrun.tasks.command import find_command
from csrun.tasks.processes import BETWEEN_SIGNALS_S, detach, start_task
from csrun.tasks.signals import SignalPipe

OTHER_FILES = 64  # that the launcher opens in addition to its connections
POLL_S = 0.1


def run_agents(
    plan: AgentPlan, starter: Starter, environment: Mapping[str, str], command_environment: Mapping[str, str]
) -> int:
    """Start the job, stream its output, and wait until nothing of it is left on any node.

    Args:
        plan: of the job.
        starter: of its scheduler.
        environment: of the launcher.
        command_environment: of the scheduler's command, and thereby of the agents.

    Returns:
        The exit code of the first task that has failed, 128 + n after signal n, 1 for a lost task or CS
        system, else 0.

    Raises:
        CsrunError: the job cannot be started; nothing of it is left running.
    """
    occupy_closed_descriptors()
    if plan.executed == plan.command:  # only the nodes need a container runtime and image
        # A typo should not cost hours in the queue.
        find_command(plan.executed[0], plan.change.apply(environment).get("PATH", ""))
    file = find_command(plan.start[0], environment.get("PATH", ""))
    connections = len(plan.tasks) + MAX_UNAUTHENTICATED_PEERS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY, -1) and hard < connections:
        raise StartError(
            f"this machine allows a process {hard} open files, and the job's connections need {connections}; "
            f"expected one for each task: raise the limit (ulimit -Hn), or start csrun_wse inside the job "
            f"(--submit)"
        )
    prepare_log_dir(plan.log_dir, is_requeued=plan.restarts > 0)
    for record in (plan.log_dir / EXITS_DIR).glob("rank-*.json"):  # of an earlier job in the same directory
        record.unlink(missing_ok=True)
    for name, text in plan.files.items():
        (plan.log_dir / name).write_text(text, encoding="utf-8")
    register(known_job(plan), environment)
    write_text(STDERR, f"Launching: {join(plan.command)} ({describe_tasks(plan)})\n")
    from cs_toolkit.security.certificates import create_pinned_context  # after the first line: it takes 50 ms

    with _listen(plan) as listener, SignalPipe() as signals:
        token = token_hex(16)
        # A certificate for this job only: the agents know its digest from the scheduler, like the token.
        context, certificate = create_pinned_context(plan.job_id)
        own = {
            **command_environment,
            "CSRUN_SUPERVISOR_HOST": "127.0.0.1" if plan.loopback else socket.gethostname(),
            "CSRUN_SUPERVISOR_PORT": str(listener.getsockname()[1]),
            "CSRUN_SUPERVISOR_PORTS": plan.ports_setting,
            "CSRUN_SUPERVISOR_CERT": certificate,
            "CSRUN_JOB_ID": plan.job_id,
            "CSRUN_JOB_TOKEN": token,
        }
        # The death of this process does not kill the command: agents need time to end their tasks first.
        process = start_task(plan.start, file, own, dies_with_parent=False)
        guard = CommandGuard(process.pid, starter.end_signals, [listener.fileno()])
        try:
            # Not earlier: the command would pass the limit on to the tasks.
            if soft not in (resource.RLIM_INFINITY, -1) and soft < connections:
                resource.setrlimit(resource.RLIMIT_NOFILE, (connections, hard))
            return JobLoop(plan, starter, signals, listener, process, guard.tasks_run, token, context).run()
        finally:
            guard.dismiss()


def _listen(plan: AgentPlan) -> socket.socket:
    """Listen for agents, on a port of the site's range if it has one."""
    # The agents of all nodes connect at about the same time, hence the long backlog.
    address = "127.0.0.1" if plan.loopback else ""
    if plan.ports is None:
        return socket.create_server((address, 0), backlog=1024)
    first, last = plan.ports
    ports = list(range(first, last + 1))
    # In random order: launchers that start together do not compete for the same ports.
    random.shuffle(ports)
    for port in ports:
        with suppress(OSError):
            return socket.create_server((address, port), backlog=1024)
    raise CsrunError(
        f"no port from {first} to {last} ({plan.ports_setting}) is free on this machine; expected a port for "
        f"connections of the tasks: end old jobs, or start this one with --submit"
    )


class CommandGuard:
    """A process that ends the scheduler's command when the launcher is killed. Create it before any thread.

    Args:
        command: pid of the command, a child of the launcher.
        signals: that end it, in sequence.
        close: descriptors that the guard must not keep open.
    """

    # While tasks run, the command first gets time instead of a signal: on a signal Slurm kills all their
    # processes and the agents at once, and processes that are forked at that moment survive.

    def __init__(self, command: int, signals: Sequence[int], close: Iterable[int]) -> None:
        read_end, self._write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write_end)
                for descriptor in close:
                    os.close(descriptor)
                detach()
                _guard(read_end, command, start_ticks(command), signals)
            finally:
                os._exit(0)
        os.close(read_end)

    def tasks_run(self) -> None:
        """Tell the guard that agents have tasks to end."""
        self._write(b"r")

    def dismiss(self) -> None:
        """End the guard; the command has ended."""
        self._write(b".")
        os.close(self._write_end)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._write_end, data)


def _guard(read_end: int, command: int, ticks: int | None, signals: Sequence[int]) -> None:
    running = False
    while message := os.read(read_end, 1):
        if message == b".":
            return
        running = True

    def lives() -> bool:
        # The pid may have been reused.
        return ticks is not None and start_ticks(command) == ticks

    if running:
        _wait_while(lives, AGENTS_LIMIT_S)
    for number, signum in enumerate((*signals, signal.SIGKILL), 1):
        if lives():
            with suppress(ProcessLookupError):
                os.kill(command, signum)
            _wait_while(lives, COMMAND_LIMIT_S if number >= len(signals) else BETWEEN_SIGNALS_S)


def _wait_while(condition: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while condition() and time.monotonic() < end_s:
        time.sleep(POLL_S)
