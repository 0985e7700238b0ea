"""One program on a whole node of its own, or on a node of the allocation that we are in."""

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
from csrun.schedulers.slurm.survey import look_around, whole_node_cpus
from csrun.tasks.command import find_command, start_error
from csrun.tasks.processes import signal_child_on_our_death
from csrun.tasks.signals import INTERRUPTS, PASSED_ON, SignalPipe


def plan_program(request: ProgramRequest, asked: Asked) -> ProgramPlan:
    """The srun that runs it.

    Raises:
        ToolkitError: there is no such command, no such partition, or no cluster.
    """
    options = SlurmOptions.of_site(asked.site, asked.flags)
    about = options.job_name or subject(request.command, Path.cwd())
    name, terminal = step_name(about), on_terminal()
    allocation = read_allocation(asked.environment) if request.inside else None
    if allocation is not None:
        avoided = options.gres_node if request.avoid_system else ""
        words = srun_cpu_step(name, allocation, request.command, avoided_node=avoided, terminal=terminal)
        return _planned(request, words, f"on a node of job {allocation.job_id}", name, terminal)
    if asked.site.container == "none" and not asked.dry_run:  # a container's runtime only the nodes need
        # A typing error is not worth a wait in the queue.
        find_command(request.command[0], request.environment["PATH"])
    words = srun_cpu(
        name,
        options,
        request.command,
        exclude_gres=request.avoid_system,
        terminal=terminal,
        cpus=_node_cpus(asked, options),
    )
    return _planned(request, words, "on a node of its own", name, terminal)


def run_program(plan: ProgramPlan) -> int:
    """Runs srun to its end and passes our signals on; the program's exit code.

    Raises:
        ToolkitError: srun cannot be started.
    """
    return run_attended(
        plan.words, plan.environment, plan.name, terminal=plan.terminal, limit_s=plan.leaving_s
    )


def _planned(
    request: ProgramRequest, words: tuple[str, ...], where: str, name: str, terminal: bool
) -> ProgramPlan:
    # srun would take the variables of an enclosing job for options.
    cleared = submission_environment(request.environment)
    return ProgramPlan(words, cleared, where, name, terminal, request.leaving_s)


def _node_cpus(asked: Asked, options: SlurmOptions) -> int | None:
    client = SlurmClient(asked.environment)
    try:
        return whole_node_cpus(client, options, look_around(client, options).partition)
    except SlurmError:
        if not asked.dry_run:
            raise
        return None


ASK_LIMIT_S = 5.0
"""Nobody who wants to end a command waits longer for an answer of the controller."""
AGAIN_S = 0.5
CANCEL_LIMIT_S = 10.0
"""From telling srun to give up a job that waits until it is told again, with force."""
FORCED_LIMIT_S = 15.0
"""From there until srun itself is killed. It waits some seconds for the nodes (KillWait and 2 s)."""


def step_name(program: str) -> str:
    """A name for the job and its step by which they are found again: no other one has it."""
    return f"{program}-{token_hex(6)}"


def on_terminal() -> bool:
    """Whether a command can have our terminal: input and output are one, and it is not another job's now."""
    return os.isatty(0) and os.isatty(1) and _in_foreground()


def run_attended(
    words: Sequence[str], environment: Mapping[str, str], name: str, *, terminal: bool, limit_s: float | None
) -> int:
    """Runs srun to its end and passes signals on to its one task.

    Args:
        words: of srun.
        environment: of srun.
        name: of the step, as `--job-name` in `words` gives it.
        terminal: the task has our terminal, `--pty` is in `words`.
        limit_s: seconds that the task has to tidy up after the first SIGINT, SIGTERM or SIGHUP; further ones
            do not disturb it. None: it gets them all, and ends when it wants to.

    Returns:
        The task's exit code, 128 + n if signal n has ended it, or has come before the task began.

    Raises:
        CsrunError: srun cannot be started.
    """
    occupy_closed_descriptors()
    file = find_command(words[0], environment["PATH"])
    flush_standard_streams()
    before = termios.tcgetattr(0) if terminal else None
    with SignalPipe((signal.SIGTSTP, signal.SIGWINCH)) as signals:
        try:
            srun = subprocess.Popen(
                words,
                executable=file,
                env=environment,
                stdin=None if _in_foreground() else subprocess.DEVNULL,
                start_new_session=True,
                # It passes on SIGINT only: what tidies up is asked to, and everything else is killed, as it
                # would have been in our place.
                preexec_fn=signal_child_on_our_death(signal.SIGTERM if limit_s is None else signal.SIGINT),
            )
        except OSError as error:
            raise start_error(words[0], error) from error
        try:
            return _Attendant(srun, SlurmClient(environment), name, signals, limit_s).run()
        finally:
            if before is not None:  # an srun that was killed leaves it without echo
                with suppress(termios.error):  # it has been closed
                    termios.tcsetattr(0, termios.TCSADRAIN, before)


class _Attendant:
    """Waits for the end of srun and for signals."""

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
        self._in_vain = False
        self._tell_at_s = math.inf
        self._force_at_s = math.inf
        self._force_with = signal.SIGTERM

    def run(self) -> int:
        """Stays until srun has ended; the exit code."""
        while self._srun.poll() is None:
            at_s = min(self._tell_at_s, self._force_at_s)
            left_s = None if at_s == math.inf else max(0.0, at_s - time.monotonic())
            select.select([self._signals], [], [], left_s)
            for signum in self._signals.read():
                self._take(signum)
            self._look(time.monotonic())
        code = self._srun.returncode
        if self._ended_by is not None and self._in_vain and code != 0:
            return 128 + self._ended_by
        return code if code >= 0 else 128 - code

    def _take(self, signum: signal.Signals) -> None:
        if signum in INTERRUPTS:
            if self._ended_by is None or self._limit_s is None:
                self._ended_by = self._ended_by or signum
                self._tell(signum)
        elif signum in (*PASSED_ON, signal.SIGWINCH):
            self._srun.send_signal(signum)
        elif signum is signal.SIGTSTP:
            self._stop()

    def _look(self, now_s: float) -> None:
        if now_s >= self._force_at_s:
            self._force()
        elif now_s >= self._tell_at_s and self._ended_by is not None:
            self._tell(self._ended_by)

    def _tell(self, signum: signal.Signals) -> None:
        """Lets the task have it; a job that still waits is given up."""
        again, self._tell_at_s = self._tell_at_s != math.inf, math.inf
        try:
            step = self._client.step_of(self._name, limit_s=ASK_LIMIT_S)
            if step and (again or signum is not signal.SIGINT):
                self._client.signal_step(step, signum, limit_s=ASK_LIMIT_S)
            elif not again:
                self._srun.send_signal(signal.SIGINT)
        except SlurmError:
            if signum is not signal.SIGINT:
                self._force()  # what nobody can be told
                return
            self._srun.send_signal(signum)  # srun needs no controller to pass it on
            step = ""
        self._in_vain = step is None
        now_s = time.monotonic()
        if self._in_vain:  # or its task is just being started, and what it is sent now may get lost
            self._tell_at_s = now_s + AGAIN_S
            self._force_at_s = min(self._force_at_s, now_s + CANCEL_LIMIT_S)
        elif again or self._force_at_s == math.inf:
            self._force_at_s = math.inf if self._limit_s is None else now_s + self._limit_s

    def _force(self) -> None:
        """Has the task killed by srun, and, when that does not end, srun itself."""
        self._in_vain = True
        self._srun.send_signal(self._force_with)
        self._force_with = signal.SIGKILL
        self._force_at_s = time.monotonic() + FORCED_LIMIT_S

    def _stop(self) -> None:
        """Ctrl-Z: srun must not go on meanwhile, it would take the terminal as soon as its job starts."""
        self._srun.send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        while not _in_foreground():  # continued by `bg`
            os.kill(os.getpid(), signal.SIGSTOP)
        self._srun.send_signal(signal.SIGCONT)


def _in_foreground() -> bool:
    """Whether we may read stdin: it is no terminal, or not one that has jobs, or this job has it."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True
