"""Runs one program on a separate node, or on a node of the current allocation."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from csrun.console import flush_standard_streams, occupy_closed_descriptors
from csrun.schedulers.base import Asked, ProgramPlan, ProgramRequest
from csrun.schedulers.slurm.allocation import read_allocation
from csrun.schedulers.slurm.arguments import srun_cpu, srun_cpu_step, subject
from csrun.schedulers.slurm.client import SlurmClient, SlurmError, submission_environment
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.survey import survey_cluster, whole_node_cpus
from csrun.tasks.command import find_command, start_error
from csrun.tasks.processes import signal_child_on_parent_death
from csrun.tasks.signals import INTERRUPTS, PASSED_ON, SignalPipe

ASK_LIMIT_S = 5.0  # of the controller's answer when the user wants to end the program
RETRY_S = 0.5
CANCEL_LIMIT_S = 10.0  # from the first signal to srun for a waiting job until the next, stronger one
FORCED_LIMIT_S = 15.0  # from there until SIGKILL; srun waits some seconds for the nodes (KillWait and 2 s)


def plan_program(request: ProgramRequest, asked: Asked) -> ProgramPlan:
    """Plan the srun for a program.

    Raises:
        ToolkitError: the command, the partition or the cluster does not exist.
    """
    options = SlurmOptions.of_site(asked.site, asked.flags)
    about = options.job_name or subject(request.command, Path.cwd())
    name, terminal = step_name(about), on_terminal()
    allocation = read_allocation(asked.environment) if request.inside else None
    if allocation is not None:
        avoided = options.gres_node if request.avoid_system else ""
        arguments = srun_cpu_step(name, allocation, request.command, avoided_node=avoided, terminal=terminal)
        return _make_plan(request, arguments, f"on a node of job {allocation.job_id}", name, terminal)
    if asked.site.container == "none" and not asked.dry_run:  # only the nodes need a container runtime
        # A typo should not cost a wait in the queue.
        find_command(request.command[0], request.environment["PATH"])
    client = SlurmClient(asked.environment)
    try:
        cpus = whole_node_cpus(client, options, survey_cluster(client, options).partition)
    except SlurmError:
        if not asked.dry_run:
            raise
        cpus = None
    arguments = srun_cpu(
        name,
        options,
        request.command,
        exclude_gres=request.avoid_system,
        terminal=terminal,
        cpus=cpus,
    )
    return _make_plan(request, arguments, "on a separate node", name, terminal)


def run_program(plan: ProgramPlan) -> int:
    """Run srun, pass signals on, and return the exit code of the program.

    Raises:
        ToolkitError: srun cannot be started.
    """
    return run_srun(plan.words, plan.environment, plan.name, terminal=plan.terminal, limit_s=plan.leaving_s)


def _make_plan(
    request: ProgramRequest, arguments: tuple[str, ...], where: str, name: str, terminal: bool
) -> ProgramPlan:
    # srun would take variables of an enclosing job as options.
    cleared = submission_environment(request.environment)
    return ProgramPlan(arguments, cleared, where, name, terminal, request.leaving_s)


def step_name(program: str) -> str:
    """Return a unique name of the job and its step, by which they are found later."""
    return f"{program}-{token_hex(6)}"


def on_terminal() -> bool:
    """Return True if a command can have the terminal: stdin and stdout are one, in the foreground."""
    return os.isatty(0) and os.isatty(1) and _in_foreground()


def run_srun(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    name: str,
    *,
    terminal: bool,
    limit_s: float | None,
) -> int:
    """Run srun to its end and pass signals on to its only task.

    Args:
        arguments: command line of srun.
        environment: of srun.
        name: of the step, the `--job-name` in `arguments`.
        terminal: the task has the terminal, with `--pty` in `arguments`.
        limit_s: seconds that the task has to clean up after the first SIGINT, SIGTERM or SIGHUP, without
            getting further ones. None: it gets all of them, and has no limit.

    Returns:
        The exit code of the task, 128 + n if signal n has ended it or has come before its start.

    Raises:
        CsrunError: srun cannot be started.
    """
    occupy_closed_descriptors()
    file = find_command(arguments[0], environment["PATH"])
    flush_standard_streams()
    before = termios.tcgetattr(0) if terminal else None
    with SignalPipe((signal.SIGTSTP, signal.SIGWINCH)) as signals:
        try:
            srun = subprocess.Popen(
                arguments,
                executable=file,
                env=environment,
                # In the background, reading the terminal would stop srun.
                stdin=None if _in_foreground() else subprocess.DEVNULL,
                # Ctrl-C goes to this process only, which passes it on.
                start_new_session=True,
                # srun passes on only SIGINT: a program that cleans up gets it, and others are killed, as they
                # would be instead of this process.
                preexec_fn=signal_child_on_parent_death(signal.SIGTERM if limit_s is None else signal.SIGINT),
            )
        except OSError as error:
            raise start_error(arguments[0], error) from error
        try:
            return _SignalForwarder(srun, SlurmClient(environment), name, signals, limit_s).run()
        finally:
            if before is not None:  # a killed srun leaves the terminal without echo
                with suppress(termios.error):  # the terminal may be closed
                    termios.tcsetattr(0, termios.TCSADRAIN, before)


class _SignalForwarder:
    """Waits for the end of srun and passes signals on."""

    def __init__(
        self,
        srun: subprocess.Popen[bytes],
        client: SlurmClient,
        name: str,
        signals: SignalPipe,
        limit_s: float | None,
    ) -> None:
        self._srun = srun
        self._client = client
        self._name = name
        self._signals = signals
        self._limit_s = limit_s
        self._ended_by: signal.Signals | None = None
        self._undelivered = False
        self._retry_at_s = math.inf
        self._force_at_s = math.inf
        self._force_with = signal.SIGTERM

    def run(self) -> int:
        """Wait until srun has ended and return the exit code."""
        while self._srun.poll() is None:
            at_s = min(self._retry_at_s, self._force_at_s)
            left_s = None if at_s == math.inf else max(0.0, at_s - time.monotonic())
            select.select([self._signals], [], [], left_s)
            for signum in self._signals.read():
                self._handle(signum)
            now_s = time.monotonic()
            if now_s >= self._force_at_s:
                self._force()
            elif now_s >= self._retry_at_s and self._ended_by is not None:
                self._pass_on(self._ended_by)
        code = self._srun.returncode
        if self._ended_by is not None and self._undelivered and code != 0:
            return 128 + self._ended_by
        return code if code >= 0 else 128 - code

    def _handle(self, signum: signal.Signals) -> None:
        if signum in INTERRUPTS:
            if self._ended_by is None or self._limit_s is None:
                self._ended_by = self._ended_by or signum
                self._pass_on(signum)
        elif signum in (*PASSED_ON, signal.SIGWINCH):
            self._srun.send_signal(signum)
        elif signum is signal.SIGTSTP:
            # srun, too, since it would take the terminal as soon as its job starts.
            self._srun.send_signal(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            while not _in_foreground():  # continued by `bg`
                os.kill(os.getpid(), signal.SIGSTOP)
            self._srun.send_signal(signal.SIGCONT)

    def _pass_on(self, signum: signal.Signals) -> None:
        """Pass a signal on to the task; withdraw a job that still waits."""
        again, self._retry_at_s = self._retry_at_s != math.inf, math.inf
        try:
            step = self._client.step_of(self._name, limit_s=ASK_LIMIT_S)
            if step and (again or signum is not signal.SIGINT):
                self._client.signal_step(step, signum, limit_s=ASK_LIMIT_S)
            elif not again:
                self._srun.send_signal(signal.SIGINT)
        except SlurmError:
            if signum is not signal.SIGINT:
                self._force()  # the task cannot be reached
                return
            self._srun.send_signal(signum)  # srun passes it on without the controller
            step = ""
        self._undelivered = step is None
        now_s = time.monotonic()
        if self._undelivered:  # or its task is starting, and signals to it may get lost
            self._retry_at_s = now_s + RETRY_S
            self._force_at_s = min(self._force_at_s, now_s + CANCEL_LIMIT_S)
        elif again or self._force_at_s == math.inf:
            self._force_at_s = math.inf if self._limit_s is None else now_s + self._limit_s

    def _force(self) -> None:
        """Have srun kill the task, and later kill srun itself."""
        self._undelivered = True
        self._srun.send_signal(self._force_with)
        self._force_with = signal.SIGKILL
        self._force_at_s = time.monotonic() + FORCED_LIMIT_S


def _in_foreground() -> bool:
    """Return True if this process may read stdin: it is not a terminal, or this job is in the foreground."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True
