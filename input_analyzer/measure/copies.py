"""Processes of the user's program that the analyzer has started, and what becomes of them."""

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

from cs_toolkit.errors import ToolkitError
from csrun.schedulers.registry import task_variables
from csrun.tasks.command import find_command
from csrun.tasks.processes import branches, descendants, signal_processes, start_task
from csrun.tasks.roles import tf_config
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
from input_analyzer.measure.node import remove_segments
from input_rules.input_export import ORDER_VARIABLE, RECEIVER_VARIABLE

POLL_S = 0.05
LOOK_AROUND_S = 0.2
"""How often memory and processes are looked at."""
START_GRACE_S = 60.0
"""So much longer a program may be loaded while that keeps a CPU busy: TensorFlow alone takes seconds."""
SEARCH_S = 1.0
"""How often processes below the copies are searched: that reads a file of every process of the machine."""

_groups = itertools.count()

_CLEARLY_MORE = 1.1
_STACK_WAIT_S = 6.0  # for those of all processes of a copy
_DUMP_WAIT_S = 2.0  # for that of one, which writes when it gets to it
_DUMP_PAUSE_S = 0.2  # so long nothing more is written: it has ended
_END_WAIT_S = 2.0
_TIDY_WAIT_S = 1.0
_END_POLL_S = 0.005
_TAIL_LINES = 25
_RESERVE = 0.03  # of the node's memory stays free, or so many bytes where that is less
_RESERVE_BYTES = 512 << 20

_ENDING_BY_THEMSELVES = (InputFailedError, ProcessBugError, ProgramError)
"""After these errors processes may run their exit handlers; after others they are killed at once."""

_LOG_OF_TENSORFLOW = re.compile(
    r"WARNING: All log messages before absl::|[IW]\d{4} \d\d:\d\d:\S+ +\d+ \S+\]|"
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\S+: [IW] \S+\]|To enable the following instructions:"
)
"""Begins of the lines that TensorFlow writes at every start."""

Message = dict[str, Any]


@dataclass
class Patience:
    """How long processes may take to end by themselves. Lasts for an analysis.

    Attributes:
        left_s: all of a group together may take so long; 0 once a group has not ended in that time, so that
            a program that hangs at its end costs that time only once.
    """

    left_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How the user's program is started.

    Attributes:
        words: what is executed.
        environment: all of it.
        time_limit_s: so long a process may show no sign of life.
        memory_bytes: so much memory all copies together may take; None: what the node has.
        host: name of this machine.
        folder: for temporary files; None: that of this machine.
        patience: with processes that are to end.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    time_limit_s: float
    memory_bytes: int | None
    host: str
    folder: Path | None = None
    patience: Patience = field(default_factory=Patience)


@dataclass
class Copy:
    """One process.

    Attributes:
        index: number among its siblings.
        cpus: CPUs that it is pinned to; empty: not pinned.
        pid: what the program says of itself; that of the process we started before it has.
        peak_bytes: most memory that it, with all below it, was seen to use.
        waited_for: it is expected to show signs of life.
        own_part: bytes resident when it was looked at last what its processes share; the part that counts.
        doing: what it has said last that it is doing.
        loaded: its program, and what that imports, has been loaded.
        cpu_s: CPU seconds that it had used when it was looked at last; of one that is not loaded.
        worked: when it was seen to use a CPU while it was loaded.
        alone: it has no siblings: it examines the input, or compares it with a changed one.
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
    waited_for: bool = True
    own_part: tuple[int, float] = (0, 1.0)
    heard: float = field(default_factory=time.monotonic)
    doing: str = "starting the program"
    loaded: bool = False
    cpu_s: float = 0.0
    worked: float = 0.0
    alone: bool = False

    @property
    def name(self) -> str:
        """How a message calls it."""
        return "the process" if self.alone else f"copy {self.index}"

    def silent_s(self) -> float:
        """Seconds without a sign of life; while it is loaded the use of a CPU is one, for some time."""
        last = self.heard if self.loaded else max(self.heard, min(self.worked, self.heard + START_GRACE_S))
        return time.monotonic() - last

    def hears(self, message: Message) -> None:
        """Remembers a sign of life."""
        self.heard, self.loaded = time.monotonic(), True
        self.doing = message.get("doing", "reading batches")

    def tell(self, word: str) -> None:
        """Sends a command; RUN makes it expected to report."""
        with suppress(OSError):
            if self.link is not None:  # else it has ended, which `messages` tells
                self.link.send(do=word)

    def without_sharing(self, resident_bytes: int, pids: Sequence[int]) -> int:
        """Of the memory of several processes what they have together: a forked worker shares the dataset.

        To find that out takes the kernel long, so it is asked only when there is clearly more than before.
        """
        before, part = self.own_part
        if len(pids) > 1 and resident_bytes > _CLEARLY_MORE * before:
            part = node.unshared_part(pids)
            self.own_part = (resident_bytes, part)
        return int(part * resident_bytes) if len(pids) > 1 else resident_bytes

    def output_tail(self) -> str:
        """The last lines that it has written."""
        text = self.output.read_bytes().decode("utf-8", "replace")
        lines = [line for line in text.rstrip().splitlines() if not _LOG_OF_TENSORFLOW.match(line)]
        return "\n".join(lines[-_TAIL_LINES:])


class Copies:
    """A group of processes, for a with statement; none is left when it ends."""

    def __init__(self, launch: Launch, orders: Sequence[Order], pins: Sequence[tuple[int, ...]] = ()) -> None:
        self._launch = launch
        self._orders = orders
        self._pins = pins
        self._looked = self._searched = 0.0
        self._below: dict[int, set[int]] = {}
        self.all: list[Copy] = []

    def __enter__(self) -> Copies:
        self._folder = _new_folder(self._launch.folder)
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
        if kind is None or issubclass(kind, _ENDING_BY_THEMSELVES):
            self._let_end()
        self._kill()
        for copy in self.all:
            copy.process.wait()
            if copy.link is not None:
                copy.link.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _let_end(self) -> None:
        """Tells all to end, which examinations and comparisons do unasked, and waits until they have."""
        for copy in self.all:
            copy.tell(END)
        patience = self._launch.patience
        end = time.monotonic() + patience.left_s
        while not all(map(_has_ended, self.all)):
            if time.monotonic() >= end:
                patience.left_s = 0.0
                return
            time.sleep(_END_POLL_S)

    def _kill(self) -> None:
        """Ends what is left of all; repeated, as one may start another meanwhile."""
        leaders = [copy.process.pid for copy in self.all]
        killed = set(leaders)
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _END_WAIT_S:
            # A process that was waited for has given its number back.
            roots = [copy.process.pid for copy in self.all if copy.process.returncode is None]
            left = node.in_sessions(leaders).union(*branches(roots).values())
            if not left:
                break
            # These end with the last process that they serve, when they have removed its semaphores.
            tidying = node.resource_trackers(left) if waited < _TIDY_WAIT_S else set()
            killed |= left - tidying
            signal_processes(left - tidying, signal.SIGKILL)
            time.sleep(_END_POLL_S)
        remove_segments(killed)

    def _start(self, order: Order) -> Copy:
        folder, name = self._folder, f"{order.copy_index}"
        stacks, output, file = folder / f"stacks{name}", folder / f"out{name}", folder / f"order{name}.json"
        file.write_text(order.model_copy(update={"stacks": str(stacks)}).model_dump_json(), encoding="utf-8")
        cpus = self._pins[order.copy_index] if self._pins else ()
        words = self._launch.words
        # Errors of TensorFlow come as exceptions; its log would bury the last lines of the program.
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
        told = {ORDER_VARIABLE: str(file), RECEIVER_VARIABLE: "input_analyzer.measure.child:serve"}
        environment = {**quiet, **self._launch.environment, **told}
        environment.update(_role(order, environment, order.cpus_per_task or len(cpus) or None))
        with output.open("wb") as sink:
            found = find_command(words[0], environment["PATH"])
            process = start_task(words, found, environment, cpus, output=sink.fileno())
        started = Copy(order.copy_index, process, output, stacks, cpus, process.pid, self._launch.host)
        return replace(started, alone=order.purpose != "copy")

    def messages(self) -> Iterator[tuple[Copy, Message]]:
        """What has come in meanwhile, after a wait of at most POLL_S.

        Raises:
            InputFailedError: the input function raised.
            ProgramError: a process has ended that should not.
            HangingInputError: one has shown no sign of life for the time limit.
            MemoryLimitError: they fill the memory.
        """
        linked = [copy.link for copy in self.all if copy.link is not None]
        watched: list[socket.socket | Link] = [self._listener, *linked]
        for ready in select.select(watched, [], [], POLL_S)[0]:
            if ready is self._listener:
                yield from self._accept()
            else:
                copy = next(one for one in self.all if one.link is ready)
                yield from self._heard(copy, self._received(copy))
        if time.monotonic() - self._looked >= LOOK_AROUND_S:
            yield from self._look_around()
            self._looked = time.monotonic()

    def _accept(self) -> Iterator[tuple[Copy, Message]]:
        link = Link(self._listener.accept()[0])
        try:
            hello, *more = link.received(self._launch.time_limit_s)
        except (ConnectionError, ValueError):  # it was ended between two words; its exit code tells the rest
            link.close()
            return
        copy = self.all[int(hello["copy"])]
        copy.link, copy.pid, copy.host, copy.heard = link, hello["pid"], hello["host"], time.monotonic()
        yield from self._heard(copy, more)

    def _heard(self, copy: Copy, messages: Sequence[Message]) -> Iterator[tuple[Copy, Message]]:
        for message in messages:
            copy.hears(message)
            if message["event"] == "failed":
                raise _failure(copy, message)
            yield copy, message

    def _received(self, copy: Copy) -> list[Message]:
        assert copy.link is not None
        try:
            return copy.link.received()
        except ConnectionError:
            copy.link.close()
            copy.link = None
            return []

    def _look_around(self) -> Iterator[tuple[Copy, Message]]:
        self._look_at_memory()
        for copy in self.all:
            code = copy.process.poll()
            if code is not None and copy.waited_for:
                yield from self._last_words(copy)  # what was waited for may be among them
            if code is not None and copy.waited_for:
                raise _ended(copy, code, self._users_stack(copy))
            if copy.waited_for and copy.silent_s() > self._launch.time_limit_s:
                raise self._hanging(copy)

    def _last_words(self, copy: Copy) -> Iterator[tuple[Copy, Message]]:
        if select.select([self._listener], [], [], 0.0)[0]:
            yield from self._accept()
        while copy.link is not None:  # until its end closes the connection
            yield from self._heard(copy, self._received(copy))

    def _look_at_memory(self) -> None:
        together = 0
        if time.monotonic() - self._searched >= SEARCH_S:
            self._below = branches(copy.process.pid for copy in self.all)
            self._searched = time.monotonic()
        for copy in self.all:
            pid = copy.process.pid
            pids = (pid, *self._below.get(pid, ()))
            usage = node.usage_of(pids)
            if not copy.loaded and usage.cpu_s > copy.cpu_s:
                copy.cpu_s, copy.worked = usage.cpu_s, time.monotonic()
            used = copy.without_sharing(usage.memory_bytes, pids)
            copy.peak_bytes = max(copy.peak_bytes, used)
            together += used
        now = node.memory()
        limit = self._launch.memory_bytes
        reserve = min(_RESERVE_BYTES, int(_RESERVE * now.total_bytes))
        if now.available_bytes < reserve or (limit is not None and together > limit):
            raise MemoryLimitError(_memory_text(self.all, together, limit, now, self._launch.host))

    def _hanging(self, copy: Copy) -> HangingInputError:
        limit = f"{self._launch.time_limit_s:g} s"
        what = "the input function hangs" if copy.link else "the program hangs before it hands its input over"
        stack = self._stack(copy) if copy.link else copy.output_tail()
        where = f"; it is here:\n{stack}" if stack else ""
        return HangingInputError(
            f"{what}: {copy.name} on {copy.host} gave no sign of life for {limit} while "
            f"{copy.doing}; expected a batch now and then: raise --time-limit if it needs longer, or look "
            f"what it waits for{where}"
        )

    def _stack(self, copy: Copy) -> str:
        # A worker process of a DataLoader has the handler, and its user's code, by fork. One after the other:
        # all write to one file, a few characters at a time.
        end = time.monotonic() + _STACK_WAIT_S
        for pid in (copy.pid, *sorted(descendants(copy.pid))):
            before = _size(copy.stacks)
            with suppress(OSError):
                os.kill(pid, signal.SIGUSR1)
                _wait_for_dump(copy.stacks, before, min(end, time.monotonic() + _DUMP_WAIT_S))
            if self._users_stack(copy):
                break
        return self._users_stack(copy)

    def _users_stack(self, copy: Copy) -> str:
        return users_stack(copy.stacks.read_text(errors="replace")) if copy.stacks.exists() else ""

    def disk_bytes(self, copy: Copy) -> int | None:
        """Bytes read from disks so far by a copy and all below it; None where the kernel does not tell."""
        pid = copy.process.pid
        return node.disk_bytes_of((pid, *descendants(pid)))

    def cpu_s(self) -> float:
        """CPU seconds that all of them have used so far."""
        below = branches(copy.process.pid for copy in self.all)
        return sum(node.usage_of((pid, *others)).cpu_s for pid, others in below.items())


def _wait_for_dump(stacks: Path, before: int, end: float) -> None:
    """Until a process has written its stacks behind so many bytes, or until a time."""
    size, changed = before, time.monotonic()
    while time.monotonic() < end and (size == before or time.monotonic() - changed < _DUMP_PAUSE_S):
        time.sleep(POLL_S)
        if _size(stacks) != size:
            size, changed = _size(stacks), time.monotonic()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _new_folder(within: Path | None) -> Path:
    """For what a group and its processes write."""
    if within is None:
        return Path(tempfile.mkdtemp(prefix="csia-"))
    folder = within / str(next(_groups))
    folder.mkdir(mode=0o700)
    return folder


def _role(order: Order, environment: Mapping[str, str], cpus: int | None) -> dict[str, str]:
    """What csrun_wse, and Slurm, tell a worker; an examination or a comparison is a job of its own."""
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


def _has_ended(copy: Copy) -> bool:
    """Whether its process has; leaves it to be waited for, so that its number stays its own."""
    if copy.process.returncode is not None:
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, copy.process.pid, flags) is not None


def _failure(copy: Copy, message: Message) -> ToolkitError:
    if message["memory"]:
        return MemoryLimitError(
            f"the input function ran out of memory on {message['host']}: {message['text']}; expected a "
            "pipeline that fits: smaller shuffle and prefetch buffers, or no cache in memory"
        )
    if message["bug"]:
        return ProcessBugError(message["host"], message["text"])
    if message["expected"]:
        return InputFailedError(str(message["text"]), message["exit_code"])
    return InputFailedError(
        f"the input function raised {message['kind']} on {message['host']}:\n{message['text']}"
    )


def _ended(copy: Copy, code: int, stack: str) -> InputAnalyzerError:
    tail = copy.output_tail()
    said = f"; its last lines:\n{tail}" if tail else ""
    if code == -signal.SIGKILL:
        return MemoryLimitError(
            f"{copy.name} was killed on {copy.host}, if by nobody else by the kernel for want of memory: it "
            f"had {copy.peak_bytes / 2**30:.1f} GiB; expected a pipeline that fits: smaller shuffle buffers, "
            f"no cache in memory{said}",
            128 + signal.SIGKILL,
        )
    if code < 0:
        name = signal.Signals(-code).name
        where = f"; it was here:\n{stack}\n" if stack else ""
        said = said.removeprefix("; ") if where else said
        return ProgramError(
            f"the program was ended by {name} on {copy.host}{where}{said}".rstrip(), 128 - code
        )
    if code:
        when = f"while {copy.doing}" if copy.loaded else "before its input was read"
        return ProgramError(f"the program ended with exit code {code} on {copy.host} {when}{said}", code)
    return ProgramError(
        f"the program ended on {copy.host} without training or compiling, so there is no input function to "
        "analyze; expected a command that trains or compiles, such as: cs_input_analyzer python run.py "
        f"--mode=train, or MODULE:FUNCTION{said}"
    )


def _memory_text(
    copies: Sequence[Copy], together: int, limit: int | None, now: node.Memory, host: str
) -> str:
    each = max(copy.peak_bytes for copy in copies) / 2**30
    allowed = (
        f"--memory allows {limit / 2**30:.1f} GiB"
        if limit is not None and together > limit
        else f"{now.available_bytes / 2**30:.1f} of {now.total_bytes / 2**30:.1f} GiB were left"
    )
    return (
        f"stopped before the memory of {host} was full: {len(copies)} "
        f"{'copy' if len(copies) == 1 else 'copies'} of the input function had {together / 2**30:.1f} GiB, "
        f"up to {each:.1f} GiB each, and {allowed}; expected a pipeline whose memory stays within bounds: "
        "smaller shuffle and prefetch buffers, no cache in memory, or more CPUs per task (fewer copies)"
    )
