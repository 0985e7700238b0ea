"""Runs a planned job on this machine: processes, pipes, logs and signals around the `Supervisor`.

One loop waits for what comes first: output of a task, a signal (a task's end is one, SIGCHLD), a deadline.
Threads: this one, and the console's writer.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from shlex import join
from typing import BinaryIO

from csrun.commandline import find_command
from csrun.console import STDERR, STDOUT, Console, occupy_closed_descriptors, wants_colour, write_text
from csrun.errors import LogDirError
from csrun.jobs import JobRecord, prepare_log_dir, timestamp
from csrun.output import PROGRESS_INTERVAL_S, TaskOutput, task_prefix
from csrun.processes import Guard, adopt_orphans, descendants, reap, signal_processes, start_task
from csrun.schedulers.base import LaunchPlan, PlannedTask
from csrun.signals import INTERRUPTS, SignalPipe
from csrun.supervisor import Action, ReportFailure, Supervisor

PROGRAM = "csrun_wse"
READ_BYTES = 65_536
DRAIN_READS = 64
"""Reads after a task's end: more than a pipe can hold, and an end if somebody else keeps writing into it."""
ENDING_POLL_S = 0.02
CONSOLE_POLL_S = 0.02
KILL_LIMIT_S = 10.0
INTERRUPTED_FLUSH_S = 2.0


def run_job(plan: LaunchPlan, environment: Mapping[str, str]) -> int:
    """Starts all tasks, streams their output, and waits until nothing of the job is left.

    Args:
        plan: the job.
        environment: the launcher's own; the plan's changes are applied to it.

    Returns:
        The exit code of the first task that failed, 128 + n after signal n, else 0.

    Raises:
        CsrunError: command, log directory or a task's start; nothing is left running.
    """
    occupy_closed_descriptors()
    shared = plan.change.apply(environment)
    file = find_command(plan.command[0], shared["PATH"])
    prepare_log_dir(plan.log_dir)
    write_text(STDERR, f"Launching: {join(plan.command)} ({_cast(plan)})\n")
    adopt_orphans()
    with SignalPipe() as signals:
        guard = Guard(plan.job_id)
        try:
            return _LocalRun(plan, signals, guard.pid).run(file, shared)
        finally:
            guard.dismiss()


class _RunningTask:
    """A task's process with its output and its log; log is None when it cannot be written any more."""

    def __init__(self, planned: PlannedTask, coloured: bool) -> None:
        self.planned = planned
        self.output = TaskOutput(task_prefix(planned.label, planned.rank, coloured))
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.log: BinaryIO | None = planned.log_path.open("wb", buffering=0)
        except OSError as error:
            raise LogDirError(
                f"cannot write the log {planned.log_path}: {error.strerror}; expected a writable file: "
                f"remove it or give another directory with --log-dir"
            ) from error

    def start(self, command: tuple[str, ...], file: str, environment: Mapping[str, str]) -> int:
        """Starts the process and returns its pid."""
        own = {**environment, **self.planned.values}
        self.process = start_task(command, file, own, self.planned.cpus)
        os.set_blocking(self.pipe, False)
        return self.process.pid

    @property
    def pipe(self) -> int:
        """The descriptor of stdout and stderr; -1 once closed."""
        stdout = self.process.stdout if self.process else None
        return -1 if stdout is None or stdout.closed else stdout.fileno()

    def close(self) -> None:
        """Closes pipe and log."""
        if self.process and self.process.stdout:
            self.process.stdout.close()
        if self.log:
            self.log.close()


class _LocalRun:
    """One run of a job."""

    def __init__(self, plan: LaunchPlan, signals: SignalPipe, guard_pid: int) -> None:
        self._plan = plan
        self._signals = signals
        self._guard_pid = guard_pid
        self._supervisor = Supervisor([task.label for task in plan.tasks], plan.grace_s, plan.wind_down_s)
        self._record = JobRecord.of(plan)
        self._record_broken = False
        self._tasks: list[_RunningTask] = []
        self._console: Console
        self._rank_by_pid: dict[int, int] = {}
        self._signalled: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._signals_only = selectors.DefaultSelector()

    def run(self, file: str, environment: Mapping[str, str]) -> int:
        """Starts the tasks and stays until nothing is left of the job; returns its exit code."""
        try:
            self._start(file, environment)
            # Only now: with a second thread the forks of the start would be unsafe.
            self._console = Console()
            self._watch()
            for task in self._tasks:  # what killed processes have written last
                while self._read(task):
                    pass
        finally:
            self._kill_everything()
            for task in self._tasks:
                task.close()
            self._selector.close()
            self._signals_only.close()
        self._finish()
        return self._supervisor.exit_code

    def _start(self, file: str, environment: Mapping[str, str]) -> None:
        coloured = wants_colour(STDOUT)
        for planned in self._plan.tasks:
            self._tasks.append(_RunningTask(planned, coloured))
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._signals_only.register(self._signals, selectors.EVENT_READ)
        shared = {**environment, "CSRUN_JOB_TOKEN": token_hex(16)}
        for rank, task in enumerate(self._tasks):
            pid = task.start(self._plan.command, file, shared)
            self._rank_by_pid[pid] = rank
            self._selector.register(task.pipe, selectors.EVENT_READ, task)
            self._record.tasks[rank].state = "running"
            self._record.tasks[rank].pid = pid

    def _watch(self) -> None:
        self._write_record()
        while not self._over():
            # A terminal that is too slow stops the reading, never the handling of signals and ends.
            full = self._console.full
            selector = self._signals_only if full else self._selector
            for key, _ in selector.select(CONSOLE_POLL_S if full else self._timeout_s()):
                if key.data is not None:
                    self._read(key.data)
            now_s = time.monotonic()
            for signum in self._signals.read():
                if signum in INTERRUPTS:
                    self._act(self._supervisor.interrupted(signum, now_s))
            for pid, exit_code in reap():
                if pid in self._rank_by_pid:
                    self._task_ended(self._rank_by_pid[pid], exit_code, now_s)
            self._act(self._supervisor.tick(now_s))
            for task in self._tasks:
                self._show(task.output.tick(now_s))

    def _over(self) -> bool:
        """Sends what every process has to get now; true when none is left."""
        signum = self._supervisor.ending_signal
        if signum is None:
            return False
        alive = descendants(os.getpid()) - {self._guard_pid}
        again = signum is signal.SIGKILL
        signal_processes([pid for pid in alive if again or self._signalled.get(pid) != signum], signum)
        self._signalled.update(dict.fromkeys(alive, signum))
        return not alive and not self._supervisor.tasks_running

    def _timeout_s(self) -> float | None:
        """How long the loop may wait for an event."""
        if self._supervisor.ending_signal is not None:
            return ENDING_POLL_S
        waits = [PROGRESS_INTERVAL_S / 2] if any(task.output.waiting for task in self._tasks) else []
        if self._supervisor.deadline_s is not None:
            waits.append(max(0.0, self._supervisor.deadline_s - time.monotonic()))
        return min(waits, default=None)

    def _read(self, task: _RunningTask) -> bool:
        """Takes one piece of a task's output; false when there is none now."""
        if task.pipe < 0:
            return False
        try:
            data = os.read(task.pipe, READ_BYTES)
        except BlockingIOError:
            return False
        now_s = time.monotonic()
        if not data:
            self._show(task.output.finish(now_s))
            self._selector.unregister(task.pipe)
            task.close()
            return False
        self._log(task, data)
        self._show(task.output.feed(data, now_s))
        return True

    def _log(self, task: _RunningTask, data: bytes) -> None:
        if task.log is None or task.log.closed:
            return
        try:
            while data:
                data = data[task.log.write(data) :]
        except OSError as error:
            task.log.close()
            self._say(
                f"cannot write {task.planned.log_path}: {error.strerror}; the job goes on, "
                f"from here without this log"
            )

    def _task_ended(self, rank: int, exit_code: int, now_s: float) -> None:
        task, record = self._tasks[rank], self._record.tasks[rank]
        assert task.process is not None
        task.process.returncode = exit_code  # it was reaped here, not by subprocess
        reads = 0
        while reads < DRAIN_READS and self._read(task):
            reads += 1
        self._show(task.output.finish(now_s))
        record.state, record.exit_code, record.ended = "ended", exit_code, timestamp()
        self._write_record()
        self._act(self._supervisor.task_ended(rank, exit_code, now_s))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, ReportFailure):
                self._report_failure(action)
            else:
                self._say(action.text)

    def _report_failure(self, failure: ReportFailure) -> None:
        task = self._tasks[failure.rank]
        tail = task.output.tail
        log = _shown(task.planned.log_path, self._plan)
        self._say(
            f"{task.planned.label} failed with {_exit_code(failure.exit_code)}; "
            + (f"its last lines (all of them: {log}):" if tail else f"it has written nothing (log: {log})")
        )
        self._console.write(STDERR, "".join(f"    {line}\n" for line in tail))

    def _write_record(self) -> None:
        if self._record_broken:
            return
        try:
            self._record.write()
        except OSError as error:
            self._record_broken = True
            self._say(
                f"cannot write the record of the job into {self._plan.log_dir}: {error.strerror}; it goes on"
            )

    def _finish(self) -> None:
        self._record.ended, self._record.exit_code = timestamp(), self._supervisor.exit_code
        self._write_record()
        interrupted_by = self._supervisor.interrupted_by
        if interrupted_by:
            outcome = f"the job was ended by {interrupted_by.name}"
        elif self._supervisor.failed:
            outcome = f"the job has failed with exit code {self._supervisor.exit_code}"
        else:
            outcome = "the job has ended well"
        self._say(f"{outcome}; logs: {_shown(self._plan.log_dir, self._plan)}")
        if interrupted_by:
            self._console.close(INTERRUPTED_FLUSH_S)
            return
        # As for any program in a pipeline, a slow reader is waited for; only a signal ends that.
        while not self._console.close(CONSOLE_POLL_S):
            if set(self._signals.read()) & set(INTERRUPTS):
                return

    def _kill_everything(self) -> None:
        """Ends what is left after an error; after a normal run there is nothing."""
        limit_s = time.monotonic() + KILL_LIMIT_S
        while (alive := descendants(os.getpid()) - {self._guard_pid}) and time.monotonic() < limit_s:
            signal_processes(alive, signal.SIGKILL)
            time.sleep(ENDING_POLL_S)
            for _ in reap():
                pass

    def _show(self, text: str) -> None:
        self._console.write(STDOUT, text)

    def _say(self, text: str) -> None:
        self._console.write(STDERR, f"{PROGRAM}: {text}\n")


def _cast(plan: LaunchPlan) -> str:
    """Who plays in the job, in words."""
    workers = len(plan.tasks) - 1
    if workers == 0:
        who = "one task, chief and worker in one"
    else:
        who = f"1 chief, {workers} worker{'s' if workers > 1 else ''}"
    return f"{who}; job {plan.job_id}, logs in {_shown(plan.log_dir, plan)}"


def _shown(path: Path, plan: LaunchPlan) -> Path:
    """The path as short as it is clear: relative below the working directory."""
    with suppress(ValueError):
        return path.relative_to(plan.cwd)
    return path


def _exit_code(code: int) -> str:
    """An exit code with the signal that it stands for in a shell."""
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
    hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"exit code {code} ({name}{hint})"
