"""Processes of this machine: starting tasks so that they cannot outlive the job, and finding what is left.

Linux only. Three things together leave nothing behind:

* the launcher is the subreaper of its descendants, so that all of them, daemons with a session of their own
  too, stay below it and are found by walking /proc;
* every task is killed by the kernel when the launcher dies;
* a guard process outlives a launcher that was killed, and ends what carries the job's marks in its
  environment.

The agent of a Slurm task (csrun/agent) does the same for its task; "launcher" means either here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from csrun.tasks.command import start_refused

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GUARD_SCAN_INTERVAL_S = 0.05
_GUARD_LIMIT_S = 30.0
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent dies, instead of process 1."""
    _prctl(ctypes.CDLL(None, use_errno=True), _PR_SET_CHILD_SUBREAPER, 1)


def start_task(
    command: Sequence[str],
    file: str,
    environment: Mapping[str, str],
    cpus: Collection[int] = (),
    dies_with_us: bool = True,
    output: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Starts a task in a session of its own; its stdout and stderr come through one pipe, its stdin is empty.

    One pipe keeps the order in which the task has written to both. The caller must have no other threads.

    Args:
        command: the user's words; `file` is what is executed for the first.
        file: path of the program.
        environment: all of the task's environment.
        cpus: CPUs that the task is pinned to; empty: not pinned.
        dies_with_us: the kernel kills it when this process dies.
        output: a descriptor that takes its stdout and stderr instead of the pipe.

    Raises:
        CommandNotExecutableError: the kernel does not execute the file.
        StartError: the machine has no room for one more process.
    """
    try:
        return subprocess.Popen(
            command,
            executable=file,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_before_exec(cpus, dies_with_us),
        )
    except OSError as error:
        raise start_refused(command[0], error) from error


def signalled_at_our_death(signum: int) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the child this signal when the calling thread dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    launcher = os.getpid()

    def prepare() -> None:
        _prctl(libc, _PR_SET_PDEATHSIG, signum)
        if os.getppid() != launcher:  # it died before the line above
            os._exit(1)

    return prepare


def signalled_at_parents_death(signum: int) -> None:
    """The kernel sends this process the signal when its parent dies."""
    parent = os.getppid()
    _prctl(ctypes.CDLL(None, use_errno=True), _PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), signum)


def _before_exec(cpus: Collection[int], dies_with_us: bool) -> Callable[[], None]:
    die = signalled_at_our_death(signal.SIGKILL) if dies_with_us else None

    def prepare() -> None:
        if die:
            die()
        if cpus:
            with suppress(OSError):  # a CPU was taken from us meanwhile: run unpinned rather than not at all
                os.sched_setaffinity(0, cpus)

    return prepare


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def reap() -> Iterator[tuple[int, int]]:
    """(pid, exit code) of every child that has ended, adopted ones included; 128 + n for signal n."""
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
    """Its living children."""
    return _children()[pid]


def descendants(root: int, besides: int = 0) -> set[int]:
    """All living processes below `root`, itself and one more excluded.

    Where it sees none it looks again: it may have missed the child of a process that ended meanwhile.
    """
    return _below(root, _children()) - {besides} or _below(root, _children()) - {besides}


def branches(roots: Iterable[int]) -> dict[int, set[int]]:
    """By root all living processes below it; looks once at all processes, however many roots there are."""
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
    """The living children of every process."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in _all_pids():
        with suppress(OSError):
            # pid (name, which may hold blanks and parentheses) state parent ...
            state, parent = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children[int(parent)].append(pid)
    return children


def catching(signum: int, branches: Iterable[int]) -> dict[int, list[int]]:
    """Who has a handler for the signal among `branches` and all below; most signals would end the others.

    Of a process and those below it only the upper one: a forked child of a program inherits its handlers, and
    what the signal means is for the program to tell it.

    Returns:
        For every branch that is still there, what was found in it.
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
            found.append(pid)
        else:
            queue.extend(children.get(pid, ()))
    return found


def _handles(signum: int, pid: int) -> bool:
    """Whether the process has a handler for the signal that does more than to tidy up and end.

    A bash script with `trap ... EXIT` catches every signal that would end it, and ends.
    """
    with suppress(OSError, ValueError):
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
        mask = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        caught = int(mask.split()[1], 16)
        return bool(caught & _bit(signum)) and caught & _TIDYING != _TIDYING
    return False


def _bit(signum: int) -> int:
    return 1 << (signum - 1)


_TIDYING = sum(map(_bit, (signal.SIGILL, signal.SIGTRAP, signal.SIGALRM, signal.SIGXCPU, signal.SIGSYS)))


def signal_processes(pids: Collection[int], signum: int) -> None:
    """Sends the signal to each; those that have ended meanwhile, or belong to others, are passed over."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            if signum != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)  # a stopped process would never see the first one


class Guard:
    """A process that ends the job's processes if this one dies before `dismiss` is called.

    Start it before any task and any thread. It waits at a pipe whose other end only this process holds.
    """

    def __init__(self, marks: Mapping[str, str], folder: Path | None = None) -> None:
        """Starts it.

        Args:
            marks: variables that all processes of the job, and no others, have in their environment.
            folder: removed after them.
        """
        read_end, self._write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._write_end)
                _guard(read_end, {os.fsencode(f"{name}={value}") for name, value in marks.items()}, folder)
            finally:
                os._exit(0)
        os.close(read_end)

    def dismiss(self) -> None:
        """Ends the guard; the job's processes have been ended."""
        with suppress(BrokenPipeError):
            os.write(self._write_end, b".")
        os.close(self._write_end)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def detach() -> None:
    """Takes a forked process out of reach of the terminal's Ctrl-C and of a kill of the launcher's group."""
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
    # One empty scan may have missed the child of a process that ended during the scan.
    while empty_scans < 2 and time.monotonic() < limit_s:
        marked = _marked(marks)
        signal_processes(marked, signal.SIGKILL)
        empty_scans = 0 if marked else empty_scans + 1
        time.sleep(_GUARD_SCAN_INTERVAL_S)
    if folder is not None:
        import shutil  # no launcher pays for it at its start

        shutil.rmtree(folder, ignore_errors=True)


def _marked(marks: set[bytes]) -> list[int]:
    """Processes that have started with all `marks` ("NAME=value") in their environment."""
    found = []
    for pid in _all_pids():
        with suppress(OSError):
            if marks <= set((_PROC / str(pid) / "environ").read_bytes().split(b"\0")):
                found.append(pid)
    return found


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]
