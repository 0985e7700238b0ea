"""Processes of this machine: start tasks so that they cannot outlive the job, and find remaining processes.

Linux only. Three mechanisms together leave no orphaned process: the launcher is the subreaper of its
descendants, the kernel kills every task when the launcher dies, and a guard process kills the remaining ones.
The agent of a task on a node (csrun/agent) does the same for its task; "launcher" means either of them here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from csrun.tasks.command import start_error

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GUARD_SCAN_INTERVAL_S = 0.05
_GUARD_LIMIT_S = 30.0
_PROC = Path("/proc")
_EXEC = str(Path(__file__).with_name("exec_task.py"))
BETWEEN_SIGNALS_S = 0.2  # two equal signals that arrive together are one


def adopt_orphans() -> None:
    """Make this process instead of process 1 the parent of descendants whose parent dies."""
    # All descendants, even daemons in a separate session, then stay below it and are found in /proc.
    _prctl(ctypes.CDLL(None, use_errno=True), _PR_SET_CHILD_SUBREAPER, 1)


def end_command(command: subprocess.Popen[bytes] | subprocess.Popen[str], signals: Sequence[int]) -> None:
    """Send signals in sequence to a command that has not ended."""
    for number, signum in enumerate(signals):
        if number:
            time.sleep(BETWEEN_SIGNALS_S)
        if command.poll() is not None:
            return
        command.send_signal(signum)


def start_task(
    command: Sequence[str],
    file: str,
    environment: Mapping[str, str],
    cpus: Collection[int] = (),
    dies_with_parent: bool = True,
    output: int = subprocess.PIPE,
    threads: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a task in a new session, with empty stdin and one pipe for stdout and stderr.

    Args:
        command: program and arguments of the user.
        file: path of the program that is executed.
        environment: the complete environment of the task.
        cpus: CPUs that the task is pinned to; empty for none.
        dies_with_parent: the kernel kills the task when this process dies.
        output: descriptor for its stdout and stderr instead of a pipe.
        threads: this process has other threads.

    Raises:
        CommandNotExecutableError: the kernel does not execute the file.
        StartError: the machine lacks resources for one more process.
    """
    arguments, program = [*command], file
    if threads:
        numbers = ",".join(map(str, cpus))
        arguments = [sys.executable, "-I", "-S", _EXEC, str(os.getpid() * dies_with_parent), numbers, file]
        arguments, program = [*arguments, *command], sys.executable
    try:
        return subprocess.Popen(
            arguments,
            executable=program,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            # One pipe keeps the order in which the task writes to both.
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
            # Python code between fork and exec can deadlock if another thread held a lock at the fork. A
            # process with threads prepares the task in a new interpreter, which costs about 15 ms.
            preexec_fn=None if threads else _before_exec(cpus, dies_with_parent),
        )
    except OSError as error:
        raise start_error(command[0], error) from error


def signal_child_on_parent_death(signum: int) -> Callable[[], None]:
    """Return a `preexec_fn` with which the kernel sends the child a signal when the calling thread dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    launcher = os.getpid()

    def prepare() -> None:
        _prctl(libc, _PR_SET_PDEATHSIG, signum)
        if os.getppid() != launcher:  # the parent died before prctl
            os._exit(1)

    return prepare


def signal_on_parent_death(signum: int) -> None:
    """Have the kernel send this process a signal when its parent dies."""
    parent = os.getppid()
    _prctl(ctypes.CDLL(None, use_errno=True), _PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # the parent died before prctl
        os.kill(os.getpid(), signum)


def _before_exec(cpus: Collection[int], dies_with_parent: bool) -> Callable[[], None]:
    die = signal_child_on_parent_death(signal.SIGKILL) if dies_with_parent else None

    def prepare() -> None:
        if die:
            die()
        if cpus:
            with suppress(OSError):  # a CPU has been revoked: better unpinned than not at all
                os.sched_setaffinity(0, cpus)

    return prepare


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    # prctl(2) is variadic and reads unsigned longs; ctypes would pass an int, half of one.
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def reap() -> Iterator[tuple[int, int]]:
    """Yield pid and exit code of every ended child, adopted ones included; 128 + n for signal n."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        yield pid, code if code >= 0 else 128 - code


def children_of(pid: int) -> list[int]:
    """Return the living children of a process."""
    return _children()[pid]


def descendants(root: int, besides: int = 0) -> set[int]:
    """Return all living descendants of `root` except `besides`."""
    # Twice if there are none: a scan may miss the child of a process that ends during it.
    return _below(root, _children()) - {besides} or _below(root, _children()) - {besides}


def branches(roots: Iterable[int]) -> dict[int, set[int]]:
    """Return the living descendants of each root, from a single scan of /proc."""
    children = _children()
    return {root: _below(root, children) for root in roots}


def _below(root: int, children: Mapping[int, list[int]]) -> set[int]:
    found: set[int] = set()
    queue = [root]
    while queue:
        below = children[queue.pop()]
        found.update(below)
        queue.extend(below)
    return found


def _children() -> dict[int, list[int]]:
    """Return the living children of every process."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in _all_pids():
        with suppress(OSError):
            # pid (name, which may contain blanks and parentheses) state parent ...
            state, parent = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children[int(parent)].append(pid)
    return children


def find_signal_handlers(signum: int, branches: Iterable[int]) -> dict[int, list[int]]:
    """Find processes with a handler for a signal among `branches` and their descendants.

    Descendants of a process with a handler are not searched.

    Returns:
        The processes found, by living branch. The signal would end most others.
    """
    children = _children()
    living = {pid for below in children.values() for pid in below}
    return {branch: _catching(signum, branch, children) for branch in branches if branch in living}


def _catching(signum: int, branch: int, children: Mapping[int, list[int]]) -> list[int]:
    found: list[int] = []
    queue = [branch]
    while queue:
        pid = queue.pop()
        if _handles(signum, pid):
            # A forked child inherits the handlers of its program, which passes the signal on if necessary.
            found.append(pid)
        else:
            queue.extend(children.get(pid, ()))
    return found


def _handles(signum: int, pid: int) -> bool:
    """Return True if the process has a handler for the signal that does more than clean up and exit."""
    with suppress(OSError, ValueError):
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
        mask = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        caught = int(mask.split()[1], 16)
        # A bash script with `trap ... EXIT` catches every signal that would end it, and exits.
        return bool(caught & _bit(signum)) and caught & _CLEANUP_SIGNALS != _CLEANUP_SIGNALS
    return False


def _bit(signum: int) -> int:
    return 1 << (signum - 1)


_CLEANUP_SIGNALS = sum(
    map(_bit, (signal.SIGILL, signal.SIGTRAP, signal.SIGALRM, signal.SIGXCPU, signal.SIGSYS))
)


def signal_processes(pids: Collection[int], signum: int) -> None:
    """Send a signal to processes, ignoring those that have ended or belong to other users."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            if signum != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)  # otherwise a stopped process would not handle the first one


def kill_marked(marks: Mapping[str, str]) -> None:
    """Kill the processes that were started with all these variables in their environment."""
    signal_processes(_marked_processes(_environment_entries(marks)), signal.SIGKILL)


def _environment_entries(marks: Mapping[str, str]) -> set[bytes]:
    return {os.fsencode(f"{name}={value}") for name, value in marks.items()}


def _marked_processes(marks: set[bytes]) -> list[int]:
    marked = []
    for pid in _all_pids():
        with suppress(OSError):
            if marks <= set((_PROC / str(pid) / "environ").read_bytes().split(b"\0")):
                marked.append(pid)
    return marked


class Guard:
    """A process that kills the job's processes if this one dies before `dismiss` is called.

    Create it before any task and any thread.
    """

    # Its signal is the end of a pipe whose write end only this process has: that comes after SIGKILL, too.
    # Other processes are recognized by their environment, since descendants of a dead launcher may have any
    # parent.

    def __init__(self, marks: Mapping[str, str], folder: Path | None = None) -> None:
        """Fork the guard.

        Args:
            marks: environment variables that all processes of the job have, and no others.
            folder: removed after the processes.
        """
        read_end, self._write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._write_end)
                _guard(read_end, _environment_entries(marks), folder)
            finally:
                os._exit(0)
        os.close(read_end)

    def dismiss(self) -> None:
        """End the guard; all processes of the job have ended."""
        with suppress(BrokenPipeError):
            os.write(self._write_end, b".")
        os.close(self._write_end)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def detach() -> None:
    """Protect a forked process from Ctrl-C and from signals to the launcher's process group."""
    os.setsid()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)


def _guard(read_end: int, marks: set[bytes], folder: Path | None) -> None:
    detach()
    if os.read(read_end, 1):
        return
    limit_s = time.monotonic() + _GUARD_LIMIT_S
    empty_scans = 0
    # One empty scan may have missed the child of a process that ended during it.
    while empty_scans < 2 and time.monotonic() < limit_s:
        marked = _marked_processes(marks)
        signal_processes(marked, signal.SIGKILL)
        empty_scans = 0 if marked else empty_scans + 1
        time.sleep(_GUARD_SCAN_INTERVAL_S)
    if folder is not None:
        import shutil  # costs start-up time and is needed on this path only

        shutil.rmtree(folder, ignore_errors=True)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]
