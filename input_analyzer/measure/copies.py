"""Start processes of the user's program for an analysis, and watch their messages, memory and exits."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from csrun.schedulers.registry import task_variables
from csrun.tasks.command import find_command
from csrun.tasks.place import tf_config
from csrun.tasks.processes import branches, descendants, signal_processes, start_task
from input_analyzer.errors import (
    HangingInputError,
    InputAnalyzerError,
    InputFailedError,
    MemoryLimitError,
    ProcessBugError,
    ProgramError,
    users_stack,
)
from input_analyzer.measure import node
from input_analyzer.measure.link import END, Link, Order, short_name
from input_analyzer.measure.node import remove_torch_segments
from input_rules.input_export import ORDER_VARIABLE, RECEIVER_VARIABLE

POLL_S = 0.05
# Interval at which memory and exits are checked.
CHECK_S = 0.2
# Additional time for loading a program that keeps a CPU busy: importing TensorFlow takes seconds.
START_GRACE_S = 60.0
# Interval at which descendants of the copies are searched, which reads a file of every process of the
# machine.
SEARCH_S = 1.0

_group_numbers = itertools.count()

_CLEARLY_MORE = 1.1
_STACK_WAIT_S = 6.0  # for the stacks of all processes of a copy
_DUMP_WAIT_S = 2.0  # for the stacks of one process
_DUMP_PAUSE_S = 0.2  # a dump is complete if nothing was written for this long
_END_WAIT_S = 2.0
_TIDY_WAIT_S = 1.0
_END_POLL_S = 0.005
_TAIL_LINES = 25
_RESERVE = 0.03  # fraction of the node's memory that stays free, at most _RESERVE_BYTES
_RESERVE_BYTES = 512 << 20

# After these errors processes may run their exit handlers; after others they are killed immediately.
_ERRORS_WITH_EXIT_HANDLERS = (InputFailedError, ProcessBugError, ProgramError)

# Beginnings of the lines that TensorFlow logs at every start.
_LOG_OF_TENSORFLOW = re.compile(
    r"WARNING: All log messages before absl::|[IW]\d{4} \d\d:\d\d:\S+ +\d+ \S+\]|"
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\S+: [IW] \S+\]|To enable the following instructions:"
)

Message = dict[str, Any]


@dataclass
class ExitTimeout:
    """How long processes may take to exit by themselves. Shared by all groups of an analysis.

    Attributes:
        left_s: time for a group to exit; 0 once a group has exceeded it, so that a program that hangs at its
            exit costs this time only once.
    """

    left_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How the user's program is started.

    Attributes:
        words: the command line.
        environment: the whole environment.
        time_limit_s: time for which a process may be silent.
        memory_bytes: memory limit for all copies together; None: that of the node.
        host: name of this machine.
        folder: folder for temporary files; None: that of this machine.
        exit_timeout: time for processes to exit.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    time_limit_s: float
    memory_bytes: int | None
    host: str
    folder: Path | None = None
    exit_timeout: ExitTimeout = field(default_factory=ExitTimeout)


@dataclass
class Copy:
    """A process of the user's program.

    Attributes:
        index: number in its group.
        cpus: CPUs that it is pinned to; empty: not pinned.
        pid: process id that the program has reported; before that, that of the process we started.
        peak_bytes: maximum memory of the process and its descendants.
        must_report: it is expected to send messages.
        unshared_part_seen: resident bytes when sharing was last measured, and the unshared fraction.
        last_message_at: time of its last message.
        doing: the last activity that it reported.
        loaded: its program and its imports have been loaded.
        cpu_s: CPU seconds at the last check, until it is loaded.
        last_busy_at: when it was last seen to use a CPU while loading.
        single: it is the only process of its group, an examination or a comparison.
    """

    index: int
    process: subprocess.Popen[bytes]
    output: Path
    stacks: Path
    cpus: tuple[int, ...]
    pid: int
    host: str
    link: Link | None = None
    peak_bytes: int = 0
    must_report: bool = True
    unshared_part_seen: tuple[int, float] = (0, 1.0)
    last_message_at: float = field(default_factory=time.monotonic)
    doing: str = "starting the program"
    loaded: bool = False
    cpu_s: float = 0.0
    last_busy_at: float = 0.0
    single: bool = False

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        return "the process" if self.single else f"copy {self.index}"

    def seconds_silent(self) -> float:
        """Return the seconds without a sign of life; while loading, using a CPU is one for some time."""
        last = (
            self.last_message_at
            if self.loaded
            else max(self.last_message_at, min(self.last_busy_at, self.last_message_at + START_GRACE_S))
        )
        return time.monotonic() - last

    def record_message(self, message: Message) -> None:
        """Update the time and activity of the last message."""
        self.last_message_at, self.loaded = time.monotonic(), True
        self.doing = message.get("doing", "reading batches")

    def send_command(self, word: str) -> None:
        """Send a command; RUN makes the process expected to report."""
        with suppress(OSError):
            if self.link is not None:  # otherwise it has exited, which `messages` reports
                self.link.send(do=word)

    def subtract_sharing(self, resident_bytes: int, pids: Sequence[int]) -> int:
        """Return the memory of several processes, in which pages that forked workers share count once."""
        # Measuring this takes the kernel long, so it is repeated only if there is clearly more memory than
        # before.
        before, part = self.unshared_part_seen
        if len(pids) > 1 and resident_bytes > _CLEARLY_MORE * before:
            part = node.measure_unshared_part(pids)
            self.unshared_part_seen = (resident_bytes, part)
        return int(part * resident_bytes) if len(pids) > 1 else resident_bytes

    def output_tail(self) -> str:
        """Return the last lines of its output."""
        text = self.output.read_bytes().decode("utf-8", "replace")
        lines = [line for line in text.rstrip().splitlines() if not _LOG_OF_TENSORFLOW.match(line)]
        return "\n".join(lines[-_TAIL_LINES:])


class Copies:
    """A group of processes, as a context manager; none is left when it exits."""

    def __init__(self, launch: Launch, orders: Sequence[Order], pins: Sequence[tuple[int, ...]] = ()) -> None:
        self._launch = launch
        self._orders = orders
        self._pins = pins
        self._checked_at = self._searched_at = 0.0
        self._descendants: dict[int, set[int]] = {}
        self.all: list[Copy] = []

    def __enter__(self) -> Copies:
        if self._launch.folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="csia-"))
        else:
            self._folder = self._launch.folder / str(next(_group_numbers))
            self._folder.mkdir(mode=0o700)
        path = str(self._folder / "link")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_name(path) as name:
            self._listener.bind(name)
        self._listener.listen(len(self._orders))
        try:
            for order in self._orders:
                self.all.append(self._start(order.model_copy(update={"socket": path})))
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        if kind is None or issubclass(kind, _ERRORS_WITH_EXIT_HANDLERS):
            for copy in self.all:  # examinations and comparisons exit without a command, too
                copy.send_command(END)

            def has_exited(copy: Copy) -> bool:
                if copy.process.returncode is not None:
                    return True
                # Without reaping the process, so that its id is not reused.
                flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
                return os.waitid(os.P_PID, copy.process.pid, flags) is not None

            exit_timeout = self._launch.exit_timeout
            end = time.monotonic() + exit_timeout.left_s
            while not all(map(has_exited, self.all)):
                if time.monotonic() >= end:
                    exit_timeout.left_s = 0.0
                    break
                time.sleep(_END_POLL_S)
        self._kill()
        for copy in self.all:
            copy.process.wait()
            if copy.link is not None:
                copy.link.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        """Kill all remaining processes, repeatedly, as one may start another in the meantime."""
        leaders = [copy.process.pid for copy in self.all]
        killed = set(leaders)
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _END_WAIT_S:
            # The id of a reaped process may belong to another one.
            roots = [copy.process.pid for copy in self.all if copy.process.returncode is None]
            left = node.processes_in_sessions(leaders).union(*branches(roots).values())
            if not left:
                break
            # Trackers exit after the last process that they serve, when they have removed its semaphores.
            tidying = node.find_resource_trackers(left) if waited < _TIDY_WAIT_S else set()
            killed |= left - tidying
            signal_processes(left - tidying, signal.SIGKILL)
            time.sleep(_END_POLL_S)
        remove_torch_segments(killed)

    def _start(self, order: Order) -> Copy:
        folder, name = self._folder, f"{order.copy_index}"
        stacks, output, file = folder / f"stacks{name}", folder / f"out{name}", folder / f"order{name}.json"
        file.write_text(order.model_copy(update={"stacks": str(stacks)}).model_dump_json(), encoding="utf-8")
        cpus = self._pins[order.copy_index] if self._pins else ()
        words = self._launch.words
        # TensorFlow raises its errors; its log would hide the last lines of the program.
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
        order_variables = {ORDER_VARIABLE: str(file), RECEIVER_VARIABLE: "input_analyzer.child:serve"}
        environment = {**quiet, **self._launch.environment, **order_variables}
        environment.update(_task_environment(order, environment, order.cpus_per_task or len(cpus) or None))
        with output.open("wb") as sink:
            found = find_command(words[0], environment["PATH"])
            process = start_task(words, found, environment, cpus, output=sink.fileno())
        started = Copy(order.copy_index, process, output, stacks, cpus, process.pid, self._launch.host)
        return replace(started, single=order.purpose != "copy")

    def messages(self) -> Iterator[tuple[Copy, Message]]:
        """Yield the messages that have arrived, after a wait of at most POLL_S.

        Raises:
            InputFailedError: the input function raised.
            ProgramError: a process has exited unexpectedly.
            HangingInputError: a process was silent for the time limit.
            MemoryLimitError: the processes fill the memory.
        """
        linked = [copy.link for copy in self.all if copy.link is not None]
        watched: list[socket.socket | Link] = [self._listener, *linked]
        for ready in select.select(watched, [], [], POLL_S)[0]:
            if ready is self._listener:
                yield from self._accept()
            else:
                copy = next(one for one in self.all if one.link is ready)
                yield from self._record_messages(copy, self._receive(copy))
        if time.monotonic() - self._checked_at >= CHECK_S:
            yield from self._check_processes()
            self._checked_at = time.monotonic()

    def _accept(self) -> Iterator[tuple[Copy, Message]]:
        link = Link(self._listener.accept()[0])
        try:
            hello, *more = link.receive(self._launch.time_limit_s)
        except (ConnectionError, ValueError):  # it was killed in between; its exit code is reported
            link.close()
            return
        copy = self.all[int(hello["copy"])]
        copy.link, copy.pid, copy.host, copy.last_message_at = (
            link,
            hello["pid"],
            hello["host"],
            time.monotonic(),
        )
        yield from self._record_messages(copy, more)

    def _record_messages(self, copy: Copy, messages: Sequence[Message]) -> Iterator[tuple[Copy, Message]]:
        for message in messages:
            copy.record_message(message)
            if message["event"] != "failed":
                yield copy, message
                continue
            text, host = str(message["text"]), message["host"]
            if message["memory"]:
                raise MemoryLimitError(
                    f"the input function ran out of memory on {host}: {text}; expected a pipeline that fits: "
                    "smaller shuffle and prefetch buffers, or no cache in memory"
                )
            if message["bug"]:
                raise ProcessBugError(host, text)
            if message["expected"]:
                raise InputFailedError(text, message["exit_code"])
            raise InputFailedError(f"the input function raised {message['kind']} on {host}:\n{text}")

    def _receive(self, copy: Copy) -> list[Message]:
        assert copy.link is not None
        try:
            return copy.link.receive()
        except ConnectionError:
            copy.link.close()
            copy.link = None
            return []

    def _check_processes(self) -> Iterator[tuple[Copy, Message]]:
        self._check_memory()
        for copy in self.all:
            code = copy.process.poll()
            if code is not None and copy.must_report:
                # The expected message may be among those that have not been read yet.
                if select.select([self._listener], [], [], 0.0)[0]:
                    yield from self._accept()
                while copy.link is not None:  # until the connection is closed
                    yield from self._record_messages(copy, self._receive(copy))
            if code is not None and copy.must_report:
                raise _error_of_exit(copy, code, self._users_stack(copy))
            if copy.must_report and copy.seconds_silent() > self._launch.time_limit_s:
                limit = f"{self._launch.time_limit_s:g} s"
                hangs = (
                    "the input function hangs"
                    if copy.link
                    else "the program hangs before it exports its input"
                )
                stack = self._stack(copy) if copy.link else copy.output_tail()
                where = f"; it is here:\n{stack}" if stack else ""
                raise HangingInputError(
                    f"{hangs}: {copy.name} on {copy.host} sent nothing for {limit} while {copy.doing}; "
                    "expected regular batches: raise --time-limit if it needs longer, or find the cause of "
                    f"the wait{where}"
                )

    def _check_memory(self) -> None:
        total_bytes = 0
        if time.monotonic() - self._searched_at >= SEARCH_S:
            self._descendants = branches(copy.process.pid for copy in self.all)
            self._searched_at = time.monotonic()
        for copy in self.all:
            pid = copy.process.pid
            pids = (pid, *self._descendants.get(pid, ()))
            usage = node.usage_of(pids)
            if not copy.loaded and usage.cpu_s > copy.cpu_s:
                copy.cpu_s, copy.last_busy_at = usage.cpu_s, time.monotonic()
            used = copy.subtract_sharing(usage.memory_bytes, pids)
            copy.peak_bytes = max(copy.peak_bytes, used)
            total_bytes += used
        now = node.read_memory()
        limit = self._launch.memory_bytes
        over_limit = limit is not None and total_bytes > limit
        if now.available_bytes >= min(_RESERVE_BYTES, int(_RESERVE * now.total_bytes)) and not over_limit:
            return
        allowed = (
            f"--memory allows {(limit or 0) / 2**30:.1f} GiB"
            if over_limit
            else f"{now.available_bytes / 2**30:.1f} of {now.total_bytes / 2**30:.1f} GiB were left"
        )
        raise MemoryLimitError(
            f"stopped before the memory of {self._launch.host} was full: {len(self.all)} "
            f"{'copy' if len(self.all) == 1 else 'copies'} of the input function had "
            f"{total_bytes / 2**30:.1f} GiB, up to {max(copy.peak_bytes for copy in self.all) / 2**30:.1f} "
            f"GiB each, and {allowed}; expected a pipeline whose memory stays within bounds: smaller shuffle "
            "and prefetch buffers, no cache in memory, or more CPUs per task (fewer copies)"
        )

    def _stack(self, copy: Copy) -> str:
        # Worker processes of a DataLoader inherit the handler by fork. They are asked in sequence, as all of
        # them write to the same file, a few characters at a time.
        end = time.monotonic() + _STACK_WAIT_S
        for pid in (copy.pid, *sorted(descendants(copy.pid))):
            size = before = _file_size(copy.stacks)
            with suppress(OSError):
                os.kill(pid, signal.SIGUSR1)
                changed = time.monotonic()
                dump_end = min(end, changed + _DUMP_WAIT_S)
                while time.monotonic() < dump_end and (
                    size == before or time.monotonic() - changed < _DUMP_PAUSE_S
                ):
                    time.sleep(POLL_S)
                    if _file_size(copy.stacks) != size:
                        size, changed = _file_size(copy.stacks), time.monotonic()
            if self._users_stack(copy):
                break
        return self._users_stack(copy)

    def _users_stack(self, copy: Copy) -> str:
        return users_stack(copy.stacks.read_text(errors="replace")) if copy.stacks.exists() else ""

    def disk_bytes(self, copy: Copy) -> int | None:
        """Return the bytes that a copy has read from disks; None if the kernel does not report it."""
        pid = copy.process.pid
        return node.disk_bytes_of((pid, *descendants(pid)))

    def cpu_s(self) -> float:
        """Return the CPU seconds that all copies have used."""
        below = branches(copy.process.pid for copy in self.all)
        return sum(node.usage_of((pid, *others)).cpu_s for pid, others in below.items())


def _file_size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _task_environment(order: Order, environment: Mapping[str, str], cpus: int | None) -> dict[str, str]:
    """Return the variables that csrun_wse and Slurm set for a worker, or for a job of one task."""
    if order.purpose != "copy":
        return task_variables(environment, 0, 1, cpus)
    rank, tasks = order.copy_index + 1, order.copies + 1
    config = tf_config(rank, ["127.0.0.1"] * tasks)
    return {
        **task_variables(environment, rank, tasks, cpus),
        "TF_CONFIG": json.dumps(config),
        "CSRUN_JOB_ID": f"input-analysis-{os.getpid()}",
        "CSRUN_JOB_TOKEN": "of an analysis, opens nothing",
        "CSRUN_RANK": str(rank),
        "CSRUN_NUM_TASKS": str(tasks),
        "CSRUN_ROLE": "worker",
        "CSRUN_TASK_INDEX": str(order.copy_index),
    }


def _error_of_exit(copy: Copy, code: int, stack: str) -> InputAnalyzerError:
    tail = copy.output_tail()
    tail_text = f"; its last lines:\n{tail}" if tail else ""
    if code == -signal.SIGKILL:
        return MemoryLimitError(
            f"{copy.name} was killed on {copy.host}, probably by the kernel because memory ran out: it "
            f"had {copy.peak_bytes / 2**30:.1f} GiB; expected a pipeline that fits: smaller shuffle buffers, "
            f"no cache in memory{tail_text}",
            128 + signal.SIGKILL,
        )
    if code < 0:
        name = signal.Signals(-code).name
        where = f"; it was here:\n{stack}\n" if stack else ""
        tail_text = tail_text.removeprefix("; ") if where else tail_text
        return ProgramError(
            f"the program was killed by {name} on {copy.host}{where}{tail_text}".rstrip(), 128 - code
        )
    if code:
        when = f"while {copy.doing}" if copy.loaded else "before its input was read"
        return ProgramError(f"the program exited with code {code} on {copy.host} {when}{tail_text}", code)
    return ProgramError(
        f"the program exited on {copy.host} without training or compiling, so there is no input function to "
        "analyze; expected a command that trains or compiles, such as: cs_input_analyzer python run.py "
        f"--mode=train, or MODULE:FUNCTION{tail_text}"
    )
