"""One task of a job: start it for the launcher, report on it, and leave no process running.

One loop waits for a message, output of the task, a signal, or the next heartbeat. The agent ends its task
when the connection to the launcher breaks, when the scheduler requests it, or when the scheduler's daemon,
its parent, is gone. The log is written by a second thread.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cs_toolkit.errors import ToolkitError
from cs_toolkit.security.proofs import is_proof, new_nonce
from cs_toolkit.security.tls_connection import TlsError, connect_pinned
from csrun.agent.connection import Connection
from csrun.agent.log import LogWriter
from csrun.agent.protocol import (
    HEARTBEAT_INTERVAL_S,
    WINDOW_BYTES,
    Challenge,
    Credit,
    Ended,
    Gone,
    Heartbeat,
    Hello,
    Interrupted,
    Message,
    Note,
    Orphaned,
    Output,
    Refused,
    Restart,
    Signal,
    Start,
    Started,
    agent_proof,
    launcher_proof,
)
from csrun.errors import CsrunError, RoleError
from csrun.jobs.record import timestamp
from csrun.tasks.command import find_command
from csrun.tasks.final_errors import has_final_error
from csrun.tasks.place import TaskPlace, load_reader
from csrun.tasks.processes import Guard, adopt_orphans, descendants, reap, signal_processes, start_task
from csrun.tasks.signals import INTERRUPTS, PASSED_ON, SignalPipe, SignalRelay

PROGRAM = "csrun_task"
CONNECT_LIMIT_S = 15.0
CONNECT_ATTEMPT_S = 3.0
CHALLENGE_LIMIT_S = 30.0
TICK_S = 0.5
SAME_SIGNAL_S = 0.3
ENDING_POLL_S = 0.02
READ_BYTES = 65_536
# Reads after the end of the task: more than a pipe can hold, and a limit if another process writes to it.
DRAIN_READS = 64
FILES_LIMIT_S = 10.0
FAREWELL_LIMIT_S = 5.0
LOST_GRACE_S = 5.0  # longest grace period without a launcher, whose killer expects an end within seconds
KILL_LIMIT_S = 30.0
# Signals of schedulers at a limit of time: Flux sends SIGALRM, limits of CPU time lead to SIGXCPU.
OTHER_INTERRUPTS = (signal.SIGALRM, signal.SIGXCPU)
PRIVATE_VARIABLES = (
    "CSRUN_SUPERVISOR_CERT",
    "CSRUN_SUPERVISOR_HOST",
    "CSRUN_SUPERVISOR_PORT",
    "CSRUN_SUPERVISOR_PORTS",
)


def main(arguments: Sequence[str]) -> int:
    """Run the task of this process and return its exit code, or 1 with a message if it has none.

    Args:
        arguments: a folder with modules, and MODULE:FUNCTION of the reader of the task's place.
    """
    adopt_orphans()
    environment = dict(os.environ)
    try:
        place = load_reader(*arguments)(environment)
        if place is None:
            raise RoleError(
                "the scheduler has set no variables of a task; expected those of a job: only csrun_wse "
                "starts this program"
            )
        place = replace(place, node=place.node or socket.gethostname())
        with SignalPipe(OTHER_INTERRUPTS) as signals:
            connection = _connect(environment, place)
            marks = {"CSRUN_JOB_ID": environment["CSRUN_JOB_ID"], "CSRUN_RANK": str(place.rank)}
            guard = Guard(marks)
            try:
                return _Task(connection, signals, guard.pid, environment, place).run()
            finally:
                guard.dismiss()
                connection.close()
    except ToolkitError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return error.exit_code
    except KeyError as error:
        sys.stderr.write(
            f"{PROGRAM}: the variable {error} is not set; expected those of csrun_wse: only csrun_wse starts "
            f"this program\n"
        )
        return 2


def _connect(environment: Mapping[str, str], place: TaskPlace) -> Connection:
    """Connect to the launcher at the first of its addresses that can be reached."""
    port = int(environment["CSRUN_SUPERVISOR_PORT"])
    hosts = [place.launcher_host, environment.get("CSRUN_SUPERVISOR_HOST", "")]
    limit_s = time.monotonic() + CONNECT_LIMIT_S
    failures: dict[str, str] = {}
    certificate = environment["CSRUN_SUPERVISOR_CERT"]
    while time.monotonic() < limit_s:
        for host in filter(None, hosts):
            try:
                return Connection(connect_pinned((host, port), CONNECT_ATTEMPT_S, certificate).detach())
            except OSError as error:
                failures[host] = error.strerror or str(error)
            except TlsError as error:
                failures[host] = str(error)
        time.sleep(TICK_S)
    tried = ", ".join(f"{host} ({reason})" for host, reason in failures.items())
    setting = environment.get("CSRUN_SUPERVISOR_PORTS", "")
    raise CsrunError(
        f"{place.node}: cannot reach csrun_wse at port {port} of {tried or 'no address'}; expected that "
        f"nodes can connect to the host where csrun_wse runs: open a range of ports for that"
        f"{f' ({setting})' if setting else ''}, or start csrun_wse inside the job (--submit)"
    )


class _Task:
    """One run of a task."""

    def __init__(
        self,
        connection: Connection,
        signals: SignalPipe,
        guard_pid: int,
        environment: dict[str, str],
        place: TaskPlace,
    ) -> None:
        self._connection = connection
        self._signals = signals
        self._guard_pid = guard_pid
        self._relay = SignalRelay(guard_pid)
        self._early_signals: list[signal.Signals] = []
        self._environment = environment
        self._place = place
        self._node = place.node
        self._token = environment["CSRUN_JOB_TOKEN"]
        self._nonce = new_nonce()
        self._launcher_nonce = ""
        self._daemon_pid = os.getppid()
        self._start: Start | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._file = ""
        self._values: dict[str, str] = {}
        self._earlier_ends: list[dict[str, object]] = []
        self._log: LogWriter | None = None
        self._log_errors: list[str] = []
        self._window = WINDOW_BYTES
        self._ending: signal.Signals | None = None
        self._kill_at_s: float | None = None
        self._give_up_at_s: float | None = None
        self._signaled: dict[int, int] = {}
        self._exit_code: int | None = None
        self._reason = "exited"
        self._started, self._ended = timestamp(), ""
        self._beat_at_s = 0.0
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run the task until no process of it is left, and return its exit code."""
        self._selector.register(self._signals, selectors.EVENT_READ)
        challenge_limit_s = time.monotonic() + CHALLENGE_LIMIT_S
        while not self._over():
            self._wait()
            now_s = time.monotonic()
            for message in self._connection.receive():
                self._handle(message)
            if self._may_read:
                self._read()
            for signum in self._signals.read():
                self._handle_signal(signum)
            for pid, exit_code in reap():
                if self._process and pid == self._process.pid:
                    self._handle_task_end(exit_code)
            self._tick(now_s)
            if not self._launcher_nonce and now_s > challenge_limit_s:
                raise CsrunError(
                    f"{self._node}: the process at csrun_wse's port does not use its protocol; expected "
                    f"csrun_wse there: it may have ended, start the job again"
                )
        self._finish()
        return self._exit_code if self._exit_code is not None else 1

    def _wait(self) -> None:
        """Wait for an event or the next tick."""
        registered = self._selector.get_map()
        wanted = {}
        if self._connection.is_open():
            wanted[self._connection.fileno()] = selectors.EVENT_READ | (
                selectors.EVENT_WRITE if self._connection.unsent_bytes else 0
            )
        if self._pipe >= 0 and self._may_read:
            wanted[self._pipe] = selectors.EVENT_READ
        signals = self._signals.fileno()
        for descriptor in [known for known in registered if known != signals and known not in wanted]:
            self._selector.unregister(descriptor)
        for descriptor, events in wanted.items():
            if descriptor not in registered:
                self._selector.register(descriptor, events)
            elif registered[descriptor].events != events:
                self._selector.modify(descriptor, events)
        self._selector.select(ENDING_POLL_S if self._ending else TICK_S)
        self._connection.flush()

    @property
    def _pipe(self) -> int:
        """Descriptor of the task's output; -1 before the start and once closed."""
        stdout = self._process.stdout if self._process else None
        return -1 if stdout is None or stdout.closed else stdout.fileno()

    @property
    def _may_read(self) -> bool:
        # While log or launcher cannot take more, the output stays in the pipe and blocks the task.
        log_full = self._log is not None and self._log.full
        return not log_full and (self._window > 0 or not self._connection.is_open())

    # --- messages of the launcher

    def _handle(self, message: Message) -> None:
        if isinstance(message, Challenge) and not self._launcher_nonce:
            self._launcher_nonce = message.nonce
            hello = Hello(
                rank=self._place.rank,
                node=self._node,
                pid=os.getpid(),
                job_id=self._place.job_id,
                step_id=self._place.step_id,
                cpus=tuple(sorted(os.sched_getaffinity(0))),
                cpus_on_node=self._place.cpus_on_node,
                nonce=self._nonce,
                proof="",
            )
            proof = agent_proof(self._token, self._launcher_nonce, hello)
            self._connection.send(replace(hello, proof=proof))
        elif isinstance(message, Start) and self._start is None:
            self._authenticate_and_start(message)
        elif isinstance(message, Restart):
            self._restart(message.number)
        elif isinstance(message, Credit):
            self._window += message.count
        elif isinstance(message, Signal):
            signum = signal.Signals(message.signum)
            if signum in PASSED_ON:
                self._pass_on(signum)
            else:
                self._end(signum, "ended by the launcher")

    def _authenticate_and_start(self, start: Start) -> None:
        expected = launcher_proof(self._token, self._launcher_nonce, self._nonce, start)
        if not is_proof(start.proof, expected):
            raise CsrunError(
                f"{self._node}: the process at csrun_wse's port does not know the job's token; expected "
                f"csrun_wse there: it may have ended, start the job again"
            )
        self._start = start
        try:
            self._start_task(start)
        except ToolkitError as error:
            self._exit_code = error.exit_code
            self._reason = f"not started: {self._node}: {error}"
            self._ending = signal.SIGTERM
            self._connection.send(Refused(f"{self._node}: {error}", error.exit_code))

    def _start_task(self, start: Start) -> None:
        try:
            os.chdir(start.cwd)
        except OSError as error:
            raise CsrunError(
                f"cannot change to the working directory {start.cwd!r}: {error.strerror}; expected a "
                f"directory that all nodes see: start the job from a shared file system"
            ) from error
        try:
            Path(start.log).parent.mkdir(parents=True, exist_ok=True)
            log = Path(start.log).open("ab" if start.append else "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise CsrunError(
                f"cannot write the log {start.log}: {error.strerror}; expected a directory that all nodes "
                f"see and may write: give another one with --log-dir"
            ) from error
        self._values = {
            name: text
            for name, text in self._environment.items()
            if name not in start.unset and name not in PRIVATE_VARIABLES
        }
        self._values.update(start.values, CSRUN_JOB_TOKEN=self._token, CSRUN_NODE=self._node)
        self._connection.limit_silence(start.peer_timeout_s)
        try:
            self._file = find_command(start.command[0], self._values.get("PATH", ""))
            self._process = start_task(start.command, self._file, self._values, start.cpus)
        except ToolkitError:
            log.close()
            raise
        os.set_blocking(self._pipe, False)
        # Not earlier: with a second thread the fork of the start would be unsafe.
        self._log = LogWriter(log, self._log_errors.append)
        self._connection.send(Started(self._process.pid))
        for signum in self._early_signals:
            self._pass_on(signum)

    def _restart(self, number: int) -> None:
        """Start the command once more, after its process has ended; the log continues."""
        start = self._start
        if start is None or self._exit_code is None or self._ending is not None:
            return  # the task is about to be ended, and the launcher does not know it yet
        # Processes that it has left would share memory, files and ports with the new one.
        signal_processes(descendants(os.getpid(), besides=self._guard_pid), signal.SIGKILL)
        self._close_pipe()
        self._earlier_ends.append({"exit_code": self._exit_code, "ended": self._ended})
        self._exit_code = None
        values = {**self._values, "CSRUN_RESTARTS": str(number)}
        try:
            # The thread that writes the log runs already.
            self._process = start_task(start.command, self._file, values, start.cpus, threads=True)
        except ToolkitError as error:
            self._exit_code = error.exit_code
            self._connection.send(Note(f"{self._node}: {error}"))
            self._connection.send(Ended(error.exit_code, would_repeat=False))
            return
        os.set_blocking(self._pipe, False)
        self._connection.send(Started(self._process.pid))

    # --- output and end of the task

    def _read(self) -> bool:
        """Read one piece of the output; return False if there is none."""
        if self._pipe < 0:
            return False
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return False
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._log is not None
        if not data:
            self._close_pipe()
            return False
        self._log.write(data)
        self._window -= len(data)
        self._connection.send(Output(data))
        return True

    def _close_pipe(self) -> None:
        if self._pipe >= 0 and self._pipe in self._selector.get_map():
            self._selector.unregister(self._pipe)
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _drain(self) -> None:
        for _ in range(DRAIN_READS):
            if not self._read():
                return

    def _handle_task_end(self, exit_code: int) -> None:
        assert self._process is not None
        self._process.returncode = exit_code  # reaped here, not by subprocess
        self._drain()
        if exit_code == 128 + signal.SIGTERM and self._ending is None:
            # A scheduler may send SIGTERM to all processes of the job. If the agent's comes a moment later,
            # the end of the task must not be taken for a failure.
            select.select([self._signals], [], [], SAME_SIGNAL_S)
            for signum in self._signals.read():
                self._handle_signal(signum)
        self._exit_code, self._ended = exit_code, timestamp()
        assert self._start is not None
        log_dir, job_id = Path(self._start.log).parent, self._environment["CSRUN_JOB_ID"]
        repeats = exit_code != 0 and has_final_error(log_dir, self._place.rank, job_id)
        self._connection.send(Ended(exit_code, repeats))

    # --- signals, time, and the end of all processes

    def _handle_signal(self, signum: signal.Signals) -> None:
        if signum in (*INTERRUPTS, *OTHER_INTERRUPTS):
            self._connection.send(Interrupted(signum))
            self._end(signal.SIGTERM, f"asked by {self._place.scheduler} ({signum.name})")
        elif signum in PASSED_ON:
            self._pass_on(signum)

    def _pass_on(self, signum: signal.Signals) -> None:
        if self._process is None:
            self._early_signals.append(signum)
        else:
            self._relay.send(signum, time.monotonic())

    def _tick(self, now_s: float) -> None:
        """Send heartbeats, and check time limits, the connection and the parent process."""
        self._relay.tick(now_s)
        while self._log_errors:
            text = f"{self._node}: cannot write {self._start and self._start.log}: {self._log_errors.pop(0)}"
            self._connection.send(Note(f"{text}; the task continues without it"))
        if now_s >= self._beat_at_s and self._launcher_nonce:
            self._beat_at_s = now_s + HEARTBEAT_INTERVAL_S
            self._connection.send(Heartbeat())
        if self._kill_at_s is None and not self._connection.is_open():
            self._end_alone(self._connection.error or "the launcher is gone", now_s)
        elif self._kill_at_s is None and os.getppid() != self._daemon_pid:
            self._connection.send(Orphaned())
            self._end_alone(f"{self._place.scheduler}'s daemon is gone", now_s)
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._end(signal.SIGKILL, self._reason)

    def _end_alone(self, reason: str, now_s: float) -> None:
        grace_s = min(LOST_GRACE_S, self._start.grace_s if self._start else 0.0)
        self._kill_at_s = now_s + grace_s
        self._end(signal.SIGTERM, reason)

    def _end(self, signum: signal.Signals, reason: str) -> None:
        if self._ending is None and self._exit_code is None:
            self._reason = reason
        if self._ending is not signal.SIGKILL:
            self._ending = signum
        if self._give_up_at_s is None and signum is signal.SIGKILL:
            self._give_up_at_s = time.monotonic() + KILL_LIMIT_S

    def _over(self) -> bool:
        """Send the signal that is due to every process of the task; return True if none is left."""
        if self._ending is None:
            return False
        running = self._process is not None and self._exit_code is None
        # Background processes of a shell ignore SIGINT.
        signum = self._ending if running or self._ending is signal.SIGKILL else signal.SIGTERM
        alive = descendants(os.getpid(), besides=self._guard_pid)
        again = signum is signal.SIGKILL
        signal_processes([pid for pid in alive if again or self._signaled.get(pid) != signum], signum)
        self._signaled.update(dict.fromkeys(alive, signum))
        if self._give_up_at_s is not None and time.monotonic() > self._give_up_at_s:
            return True  # not even SIGKILL ends a process that waits for a device
        return not alive and not running

    def _finish(self) -> None:
        self._drain()  # the last output of killed processes
        if self._start is not None:
            if self._log is None:
                self._log = LogWriter(None, self._log_errors.append)
            self._log.finish(Path(self._start.exit_record), self._record(), FILES_LIMIT_S)
            for error in self._log_errors:
                self._connection.send(Note(f"{self._node}: cannot write the task's files: {error}"))
        self._connection.send(Gone())
        limit_s = time.monotonic() + FAREWELL_LIMIT_S
        while self._connection.is_open() and self._connection.unsent_bytes and time.monotonic() < limit_s:
            self._connection.flush()
            time.sleep(ENDING_POLL_S)
        self._selector.close()

    def _record(self) -> dict[str, object]:
        code = self._exit_code
        signum = code - 128 if code is not None and 128 < code < 128 + signal.NSIG else None
        return {
            "rank": self._place.rank,
            "node": self._node,
            "pid": self._process.pid if self._process else None,
            "exit_code": code,
            "signal": signum,
            "started": self._started,
            "ended": timestamp(),
            "reason": self._reason,
            "restarts": len(self._earlier_ends),
            "earlier_ends": self._earlier_ends,
        }
