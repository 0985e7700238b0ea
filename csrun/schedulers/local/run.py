"""Runs a planned job on this machine.

One loop waits for output of a task, a signal (SIGCHLD for the end of a task), or a deadline. The console's
writer and the monitoring of the CS system have their own threads.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from secrets import token_hex
from shlex import join
from typing import BinaryIO

from csrun.console import STDERR, occupy_closed_descriptors, write_text
from csrun.errors import CsrunError, LogDirError
from csrun.jobs.output import CONSOLE_POLL_S, PROGRESS_INTERVAL_S, JobReport, describe_tasks
from csrun.jobs.record import JobRecord, known_job, prepare_log_dir
from csrun.jobs.registry import register
from csrun.jobs.supervisor import Supervisor
from csrun.schedulers.base import LaunchPlan, PlannedTask
from csrun.schedulers.registry import node_name
from csrun.system_status import CHIEF_REPORT_LIMIT_S, SystemWatch
from csrun.tasks.command import find_command
from csrun.tasks.final_errors import has_final_error
from csrun.tasks.processes import (
    Guard,
    adopt_orphans,
    descendants,
    kill_marked,
    reap,
    signal_processes,
    start_task,
)
from csrun.tasks.signals import INTERRUPTS, LOOK_INTERVAL_S, PASSED_ON, SignalPipe, SignalRelay

READ_BYTES = 65_536
# Reads after the end of a task: more than a pipe can hold, and a limit if another process writes into it.
DRAIN_READS = 64
ENDING_POLL_S = 0.02
KILL_LIMIT_S = 10.0


def run_job(plan: LaunchPlan, environment: Mapping[str, str]) -> int:
    """Start all tasks, stream their output, and wait until nothing of the job is left.

    Args:
        plan: of the job.
        environment: of the launcher; the changes of the plan are applied to it.

    Returns:
        The exit code of the first task that has failed, 128 + n after signal n, else 0.

    Raises:
        CsrunError: the command, the log directory or the start of a task failed; nothing is left running.
    """
    occupy_closed_descriptors()
    shared = plan.change.apply(environment)
    file = find_command(plan.executed[0], shared["PATH"])
    prepare_log_dir(plan.log_dir)
    register(known_job(plan), environment)
    write_text(STDERR, f"Launching: {join(plan.command)} ({describe_tasks(plan)})\n")
    adopt_orphans()
    with SignalPipe() as signals:
        guard = Guard({"CSRUN_JOB_ID": plan.job_id})
        try:
            return _LocalRun(plan, signals, guard.pid).run(file, shared)
        finally:
            guard.dismiss()


class _RunningTask:
    """Process and log of a task; the log is None if it can no longer be written."""

    def __init__(self, planned: PlannedTask) -> None:
        self.planned = planned
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.log: BinaryIO | None = planned.log_path.open("wb", buffering=0)
        except OSError as error:
            raise LogDirError(
                f"cannot write the log {planned.log_path}: {error.strerror}; expected a writable file: "
                f"remove it or give another directory with --log-dir"
            ) from error

    def start(
        self, command: tuple[str, ...], file: str, environment: Mapping[str, str], restarts: int = 0
    ) -> int:
        """Start the process, or another one after its end, and return its pid."""
        own = {**environment, **self.planned.values}
        if restarts:
            own["CSRUN_RESTARTS"] = str(restarts)
        self.process = start_task(command, file, own, self.planned.cpus, threads=restarts > 0)
        os.set_blocking(self.pipe, False)
        return self.process.pid

    def reopen_log(self) -> None:
        """Append to the log from now on.

        Raises:
            OSError: it can no longer be written.
        """
        if self.log is not None and self.log.closed:
            self.log = self.planned.log_path.open("ab", buffering=0)

    @property
    def pipe(self) -> int:
        """Descriptor of the task's output; -1 once closed."""
        stdout = self.process.stdout if self.process else None
        return -1 if stdout is None or stdout.closed else stdout.fileno()

    def close(self) -> None:
        """Close pipe and log."""
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
        self._relay = SignalRelay(guard_pid)
        self._supervisor = Supervisor(
            [task.label for task in plan.tasks],
            plan.grace_s,
            plan.wind_down_s,
            max_restarts=plan.max_restarts,
        )
        self._record = JobRecord.of(plan)
        self._tasks: list[_RunningTask] = []
        self._report: JobReport
        self._system: SystemWatch | None = None
        self._rank_by_pid: dict[int, int] = {}
        self._file = ""
        self._environment: Mapping[str, str] = {}
        self._signaled: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._signals_only = selectors.DefaultSelector()

    def run(self, file: str, environment: Mapping[str, str]) -> int:
        """Start the tasks, wait until nothing of the job is left, and return its exit code."""
        try:
            self._start(file, environment)
            # Not earlier: with a second thread the forks of the start would be unsafe.
            self._report = JobReport(self._plan, self._record)
            if self._plan.system is not None:
                self._system = SystemWatch(*self._plan.system, self._plan.peer_timeout_s)
                self._selector.register(self._system, selectors.EVENT_READ)
                self._signals_only.register(self._system, selectors.EVENT_READ)
            self._watch()
            for task in self._tasks:  # the last output of killed processes
                while self._read(task):
                    pass
        finally:
            self._kill_everything()
            if self._system is not None:
                self._system.close()
            for task in self._tasks:
                task.close()
            self._selector.close()
            self._signals_only.close()
        self._report.conclude(self._supervisor, self._signals.read)
        return self._supervisor.exit_code

    def _start(self, file: str, environment: Mapping[str, str]) -> None:
        for planned in self._plan.tasks:
            self._tasks.append(_RunningTask(planned))
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._signals_only.register(self._signals, selectors.EVENT_READ)
        self._file = file
        self._environment = {
            **environment,
            "CSRUN_JOB_TOKEN": token_hex(16),
            "CSRUN_NODE": node_name(environment),
        }
        for rank in range(len(self._tasks)):
            self._record.tasks[rank].pid = self._start_task(rank)
            self._record.tasks[rank].state = "running"

    def _start_task(self, rank: int, restarts: int = 0) -> int:
        task = self._tasks[rank]
        pid = task.start(self._plan.executed, self._file, self._environment, restarts)
        self._rank_by_pid[pid] = rank
        self._selector.register(task.pipe, selectors.EVENT_READ, task)
        return pid

    def _restart(self, rank: int, now_s: float) -> None:
        task = self._tasks[rank]
        if task.pipe >= 0:  # a process of another user, or one that cannot be killed, still has it
            self._selector.unregister(task.pipe)
            task.close()
        try:
            task.reopen_log()
        except OSError as error:
            self._report.say(f"cannot write {task.planned.log_path}: {error.strerror}; the job continues")
        try:
            pid = self._start_task(rank, self._supervisor.restarts(rank))
        except CsrunError as error:
            self._report.act(self._supervisor.handle_task_end(rank, error.exit_code, now_s))
            self._report.say(str(error))
            return
        self._report.record_start(rank, pid)
        self._report.write_record()

    def _watch(self) -> None:
        while not self._over():
            # A slow terminal stops the reading of output, never the handling of signals and ended tasks.
            full = self._report.full
            selector = self._signals_only if full else self._selector
            for key, _ in selector.select(CONSOLE_POLL_S if full else self._timeout_s()):
                if key.data is not None:
                    self._read(key.data)
            now_s = time.monotonic()
            if self._system is not None and self._system.gone:
                text = self._system.text
                self._selector.unregister(self._system)
                self._signals_only.unregister(self._system)
                self._system.close()
                self._system = None
                self._report.act(self._supervisor.handle_system_loss(text, now_s, CHIEF_REPORT_LIMIT_S))
            for signum in self._signals.read():
                if signum in INTERRUPTS:
                    self._report.act(self._supervisor.handle_interrupt(signum, now_s))
                elif signum in PASSED_ON:
                    self._relay.send(signum, now_s)
            for pid, exit_code in reap():
                if pid in self._rank_by_pid:
                    self._end_task(self._rank_by_pid[pid], exit_code, now_s)
            self._relay.tick(now_s)
            self._report.act(self._supervisor.tick(now_s))
            for rank in self._supervisor.due_restarts(now_s):
                self._restart(rank, now_s)
            self._report.tick(now_s)

    def _over(self) -> bool:
        """Send the signal that is due to every process; return True if none is left."""
        signum = self._supervisor.termination_signal
        if signum is None:
            return False
        alive = self._alive()
        again = signum is signal.SIGKILL
        signal_processes([pid for pid in alive if again or self._signaled.get(pid) != signum], signum)
        self._signaled.update(dict.fromkeys(alive, signum))
        return not alive and not self._supervisor.has_running_tasks

    def _alive(self) -> set[int]:
        return descendants(os.getpid(), besides=self._guard_pid)

    def _timeout_s(self) -> float | None:
        """Return how long the loop may wait for an event."""
        if self._supervisor.termination_signal is not None:
            return ENDING_POLL_S
        waits = [PROGRESS_INTERVAL_S / 2] if self._report.waiting else []
        if self._relay.waiting:
            waits.append(LOOK_INTERVAL_S)
        if self._supervisor.next_tick_s is not None:
            waits.append(max(0.0, self._supervisor.next_tick_s - time.monotonic()))
        return min(waits, default=None)

    def _read(self, task: _RunningTask) -> bool:
        """Read one piece of a task's output; return False if there is none."""
        if task.pipe < 0:
            return False
        try:
            data = os.read(task.pipe, READ_BYTES)
        except BlockingIOError:
            return False
        now_s = time.monotonic()
        if not data:
            self._report.output_ended(task.planned.rank, now_s)
            self._selector.unregister(task.pipe)
            task.close()
            return False
        self._log(task, data)
        self._report.output(task.planned.rank, data, now_s)
        return True

    def _log(self, task: _RunningTask, data: bytes) -> None:
        if task.log is None or task.log.closed:
            return
        try:
            while data:
                data = data[task.log.write(data) :]
        except OSError as error:
            task.log.close()
            self._report.say(
                f"cannot write {task.planned.log_path}: {error.strerror}; the job continues without this log"
            )

    def _end_task(self, rank: int, exit_code: int, now_s: float) -> None:
        task = self._tasks[rank]
        assert task.process is not None
        task.process.returncode = exit_code  # reaped here, not by subprocess
        reads = 0
        while reads < DRAIN_READS and self._read(task):
            reads += 1
        self._report.output_ended(rank, now_s)
        self._report.record_end(rank, exit_code)
        final = has_final_error(self._plan.log_dir, rank, self._plan.job_id)
        self._report.act(self._supervisor.handle_task_end(rank, exit_code, now_s, would_repeat=final))
        if self._supervisor.is_restarting(rank):
            # Processes that it has left would share memory, files and ports with the new one.
            kill_marked({"CSRUN_JOB_ID": self._plan.job_id, "CSRUN_RANK": str(rank)})

    def _kill_everything(self) -> None:
        """Kill the processes that remain after an error, and reap all of them."""
        # After a normal run only zombies can remain, which a caller that waits for the job might still see.
        for _ in reap():
            pass
        limit_s = time.monotonic() + KILL_LIMIT_S
        while (alive := self._alive()) and time.monotonic() < limit_s:
            signal_processes(alive, signal.SIGKILL)
            time.sleep(ENDING_POLL_S)
            for _ in reap():
                pass
