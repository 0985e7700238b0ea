"""Child processes of a CS system, and the fork server."""

from __future__ import annotations

import errno
import operator
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cs_system import processes
from cs_system.processes import ChildProcess
from tests.processes import is_running, wait_until

LIMIT_S = 60.0

PROGRAM = """
import signal, sys, time
from cs_system.processes import ChildProcess
signal.signal(signal.SIGINT, lambda *_: None)
print("starting", flush=True)
process = ChildProcess("cs_test", time.sleep, [1000])
print(process.pid, flush=True)
time.sleep(1000)
"""


@contextmanager
def program() -> Iterator[subprocess.Popen[str]]:
    """A function that starts a process, in a new session and group."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_exit_code_is_that_of_the_function() -> None:
    process = ChildProcess("cs_test", operator.index, [7])
    assert process.wait(LIMIT_S)
    assert (process.has_ended, process.exit_code) == (True, 7)
    process.end()
    assert process.exit_code == 7


def test_the_fork_server_has_the_code_of_its_processes() -> None:
    code = """
import sys
from importlib import import_module
from cs_system.processes import _PRELOADED
for name in _PRELOADED:
    import_module(name)
known = set(sys.modules)
# The modules of the functions that they run.
import cs_system.memoryx.config, cs_system.memoryx.remote
import cs_system.server.engine_process, cs_system.swarmx.hosts
print(*sorted(name for name in set(sys.modules) - known if name.startswith("cs_")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_it_ends_on_request_and_has_its_name_until_then() -> None:
    process = ChildProcess("cs_test", time.sleep, [1000])
    assert not process.wait(0.0)
    assert process.exit_code is None
    wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "cs_test\n")
    assert os.getsid(process.pid) == process.pid
    process.end()
    assert process.exit_code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_one_that_does_not_end_is_killed() -> None:
    process = ChildProcess("cs_test", time.sleep, [1000])
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: "State:\tT" in Path(f"/proc/{process.pid}/status").read_text())
    process.end(0.1)
    assert process.exit_code == -signal.SIGKILL


def test_all_are_forked_from_one_process() -> None:
    started = [ChildProcess("cs_test", time.sleep, [1000]) for _ in range(3)]
    (parent,) = {parent_of(process.pid) for process in started}
    assert parent_of(parent) == os.getpid()
    for process in started:
        process.end()


def test_a_lost_fork_server_is_replaced() -> None:
    first = ChildProcess("cs_test", time.sleep, [1000])
    parent = parent_of(first.pid)
    os.kill(parent, signal.SIGKILL)
    assert first.wait(LIMIT_S)
    assert (first.has_ended, first.exit_code) == (True, None)
    first.end()
    wait_until(lambda: not is_running(first.pid))
    second = ChildProcess("cs_test", time.sleep, [1000])
    assert parent_of(second.pid) != parent
    second.end()
    assert second.exit_code == 0


def test_several_threads_may_ask() -> None:
    process = ChildProcess("cs_test", time.sleep, [1000])
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(process.wait) for _ in range(3)]
        asked = [process.has_ended for _ in range(1000)]
        process.end()
        assert all(future.result(LIMIT_S) for future in waiting)
    assert not any(asked)
    assert process.exit_code == 0


def test_a_message_that_one_thread_reads_reaches_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one CPU a thread reads the message before another one, which waits for it as well, has seen it."""
    statuses: list[int] = []

    def fork(request: bytes, descriptors: Sequence[int], may_fork: bool) -> None:
        statuses.append(os.dup(descriptors[1]))

    monkeypatch.setattr(processes._fork_server, "fork", fork)
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                process = ChildProcess("cs_test", time.sleep, [1000])
                ends = [pool.submit(process.wait) for _ in range(2)]
                pids = [pool.submit(lambda process=process: process.pid) for _ in range(2)]
                wait_until(lambda: pool._work_queue.empty())
                time.sleep(0.01)  # all wait now, most likely
                status = statuses.pop()
                os.write(status, (7).to_bytes(4, "little"))
                _, missing = futures.wait(pids, timeout=10)
                os.close(status)
                assert not missing
                assert [future.result(LIMIT_S) for future in (*pids, *ends)] == [7, 7, True, True]
    finally:
        os.sched_setaffinity(0, cpus)


def test_a_system_may_have_thousands_of_connections() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2000), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        process = ChildProcess("cs_test", operator.index, [7])
        assert process.wait(LIMIT_S)
        assert process.exit_code == 7
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_they_end_with_a_program_that_is_killed() -> None:
    with program() as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "starting\n"
        pid = int(running.stdout.readline())
        pids = [pid, parent_of(pid)]
        assert all(map(is_running, pids))
        running.kill()
        wait_until(lambda: not any(map(is_running, pids)))


def test_ctrl_c_is_only_for_the_program() -> None:
    """Also while the process that forks the others is being started."""
    with program() as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "starting\n"
        for _ in range(10):
            os.killpg(running.pid, signal.SIGINT)
            time.sleep(0.05)
        pid = int(running.stdout.readline())
        os.killpg(running.pid, signal.SIGINT)
        assert is_running(pid)
        running.kill()
        assert running.stderr is not None
        assert running.stderr.read() == ""


FORK_SERVER = """
import os, socket, sys
from cs_system import processes
name = sys.argv[1]
real = getattr(os, name)
def fail_once(*arguments):
    setattr(os, name, real)
    raise BlockingIOError(11, os.strerror(11))
setattr(os, name, fail_once)
processes.fork_on_request(socket.socket(fileno=0))
"""


@pytest.mark.parametrize("failing", ["fork", "pidfd_open"])
def test_a_process_that_cannot_be_forked_has_the_reason_and_the_next_one_starts(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = processes._ForkServer()
    client.adopt(ours.detach())
    monkeypatch.setattr(processes, "_fork_server", client)
    command = [sys.executable, "-c", FORK_SERVER, failing]
    with theirs, subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, text=True) as server:
        process = ChildProcess("cs_test", operator.index, [7])
        assert process.wait(LIMIT_S)
        assert (process.exit_code, process.start_error) == (None, "Resource temporarily unavailable")
        with pytest.raises(ChildProcessError, match="could not be started: Resource temporarily"):
            _ = process.pid
        process.kill()
        process.end()
        second = ChildProcess("cs_test", operator.index, [8])
        assert second.wait(LIMIT_S)
        assert (second.exit_code, second.start_error) == (8, "")
        theirs.close()
        client._requests.close()
        assert server.stderr is not None
        assert "cannot start cs_test: Resource temporarily unavailable; free mem" in server.stderr.read()
    assert server.returncode == 0


def fail_with(number: int) -> Callable[..., object]:
    def fail(*_: object, **options: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_fork_server_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_fork_server", processes._ForkServer())
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail_with(errno.ENOMEM))
        process = ChildProcess("cs_test", operator.index, [7])
        assert process.wait(LIMIT_S)
        assert process.start_error == "Cannot allocate memory"
    second = ChildProcess("cs_test", operator.index, [8])
    assert second.wait(LIMIT_S)
    assert second.exit_code == 8


OUT_OF_MEMORY = """
import operator, os, socket, sys, threading
from cs_system import processes
open(sys.argv[1], "w").write(str(os.getpid()))
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork():
    theirs.close()
    processes._fork_server.adopt(ours.detach())
    process = processes.ChildProcess("cs_test", operator.mul, ["ab", 1 << 29])
    process.wait()
    print(process.exit_code, process.memory)
else:
    ours.close()
    processes.fork_on_request(theirs)
"""


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of 150 MB; the file that takes the processes."""
    for parent, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        cgroup = Path("/sys/fs/cgroup", parent, f"cs_test_{os.getpid()}")
        try:
            cgroup.mkdir()
        except OSError:
            continue
        has_limit = (cgroup / name).exists()
        if has_limit:
            (cgroup / name).write_text("150000000")
            processes_file = cgroup / "cgroup.procs"
            yield processes_file
            wait_until(lambda file=processes_file: not file.read_text())  # the fork server ends last
        cgroup.rmdir()
        if has_limit:
            return
    pytest.skip("no cgroup of memory can be made here")


def test_a_kill_by_the_kernel_for_memory_is_known(small_cgroup: Path) -> None:
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(small_cgroup)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.fullmatch(
        r"-9 MemoryUse\(peak_bytes=(\d+), limit_bytes=1499\d+, limited_by='its cgroup', "
        r"is_killed_for_memory=True\)\n",
        output,
    )
    assert found is not None, output
    assert 100e6 < int(found[1]) < 200e6


def test_the_memory_of_a_killed_process_is_known() -> None:
    process = ChildProcess("cs_test", time.sleep, [1000])
    process.kill()
    assert process.wait(LIMIT_S)
    memory = process.memory
    assert memory is not None
    assert 1e6 < memory.peak_bytes < memory.limit_bytes
