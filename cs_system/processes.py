"""Child processes of a CS system: engines, wafers of a group, and MemoryX.

They are forked from a fork server, a process that is started with the first of them, imports JAX, and ends
with the CS system. So the following ones start immediately, instead of after half a second of CPU time each.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from cs_system.errors import CsSystemError, SystemBugError
from cs_system.logs import LogOptions, set_up_logging
from cs_system.memory import MemoryUse, count_oom_kills, memory_limit
from cs_toolkit.garbage import use_infrequent_collection

log = logging.getLogger("cs_system")

END_TIMEOUT_S = 5.0

# Size of the numbers in the messages of a child process: its pid; its exit code, and the most memory that it
# has used in KiB. Signed, little-endian.
NUMBER_BYTES = 4
_MAX_NUMBER = 2**31 - 1

Json = str | int
# All code of the child processes, so that an upgrade of the toolkit does not reach a running system.
_PRELOADED = (
    "cs_system.memoryx.server",
    "cs_system.memoryx.update_server",
    "cs_system.server.engine_child",
    "cs_system.server.engine_process",
    "cs_system.swarmx.hosts",
    "cs_system.swarmx.member",
)
_MAX_REQUEST_BYTES, _MAX_DESCRIPTORS = 1 << 16, 8


class ChildProcess:
    """A process in its own session. It ends with `end`, and with this process, however that ends.

    Args:
        name: Name in `ps -o comm` and `top`; Linux keeps the first 15 characters.
        run: The function of a module that it runs; returns the exit code.
        arguments: Arguments of the function.
        descriptors: File descriptors, whose duplicates are appended to the arguments.
        may_fork: Whether it may start child processes itself, from the same fork server.

    Attributes:
        start_error: Why it could not be started, once it has ended; empty if it was started.
        memory: The memory of a process that was ended by SIGKILL; otherwise None.
    """

    def __init__(
        self,
        name: str,
        run: Callable[..., int],
        arguments: Sequence[Json],
        descriptors: Sequence[int] = (),
        may_fork: bool = False,
    ) -> None:
        # Guards what follows; notified when a thread has stopped reading messages of the process.
        self._changed = threading.Condition()
        self._is_read = False
        self._pid: int | None = None
        self._has_ended = False
        self._exit_code: int | None = None
        self.start_error = ""
        self.memory: MemoryUse | None = None
        self._oom_kills = count_oom_kills()
        self._status, status = os.pipe()
        self._close_status = weakref.finalize(self, os.close, self._status)
        try:
            lifeline, self._lifeline = os.pipe()
        except OSError:
            os.close(status)
            raise
        self._close_lifeline = weakref.finalize(self, os.close, self._lifeline)
        request: dict[str, Any] = {"name": name, "run": [run.__module__, run.__qualname__]}
        request |= {"arguments": list(arguments), "may_fork": may_fork}
        try:
            _fork_server.fork(json.dumps(request).encode(), [lifeline, status, *descriptors], may_fork)
        except OSError as error:
            # The fork server could not be started. The end of the pipe is the end of this process.
            self.start_error = error.strerror or str(error)
            _log_start_error(name, self.start_error)
        finally:
            os.close(lifeline)
            os.close(status)

    @property
    def pid(self) -> int:
        """Process id; waits until the process has started.

        Raises:
            ChildProcessError: it could not be started.
        """
        self._wait_until(lambda: self._pid is not None or self._has_ended, None)
        if self._pid is None:
            raise ChildProcessError(f"the process could not be started: {self.start_error or 'see the log'}")
        return self._pid

    @property
    def has_started(self) -> bool:
        """True if the fork server has started it, or could not."""
        return self._wait_until(lambda: self._pid is not None or self._has_ended, 0.0)

    @property
    def has_ended(self) -> bool:
        """True if it has ended, or is unknown because the fork server is gone."""
        return self.wait(0.0)

    @property
    def exit_code(self) -> int | None:
        """Exit code of a process that has ended, -N for signal N; None if it is not known."""
        self.wait(0.0)
        return self._exit_code

    def kill(self) -> None:
        """Kill it without waiting."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return False if it does not end in time."""
        return self._wait_until(lambda: self._has_ended, timeout_s)

    def end(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ask it to end, and wait; kill it if that takes too long."""
        self._close_lifeline()
        if not self.wait(timeout_s):
            self.kill()
            self.wait()

    def release(self) -> None:
        """Let it end by itself, also if it starts only later; does not wait."""
        self._close_lifeline()

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Read the messages of the process until the condition holds; return False if it does not in time.

        Of several threads, one reads, and the others wait for it: two that poll would not both be woken by
        a message that the first of them has read.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._changed:
                if condition():
                    return True
                if self._is_read:
                    if not self._changed.wait(left_s):
                        return condition()
                    continue
                self._is_read = True
            if not self._read(left_s):
                return False

    def _read(self, timeout_s: float | None) -> bool:
        """Read a message of the process; return False if none comes in time."""
        has_come = False
        try:
            readable = select.poll()  # `select.select` cannot use descriptors above 1023
            readable.register(self._status, select.POLLIN)
            has_come = bool(readable.poll(None if timeout_s is None else 1000 * timeout_s))
        finally:
            with self._changed:
                if has_come:
                    self._take_message()
                self._is_read = False
                self._changed.notify_all()
        return has_come

    def _take_message(self) -> None:
        message = os.read(self._status, NUMBER_BYTES if self._pid is None else 2 * NUMBER_BYTES)
        number = int.from_bytes(message[:NUMBER_BYTES], "little", signed=True)
        if number > 0 and self._pid is None:
            self._pid = number
            return
        self._has_ended = True
        if self._pid is None:
            self.start_error = os.strerror(-number) if number else self.start_error
        elif message:
            self._exit_code = number
            if number == -signal.SIGKILL:
                peak_kib = int.from_bytes(message[NUMBER_BYTES:], "little", signed=True)
                is_for_memory = count_oom_kills() > self._oom_kills
                self.memory = MemoryUse(1024 * peak_kib, *memory_limit(), is_for_memory)
        self._close_status()
        self._close_lifeline()


def end_process(code: int) -> NoReturn:
    """Exit immediately: at a normal exit, threads that still wait, in XLA for example, would abort Python."""
    _fork_server.stop()
    logging.shutdown()
    os._exit(code)


# The fork server of `multiprocessing` is no alternative. It makes its client wait for its imports: the first
# process is started in 2.2 s instead of 0.03 s (two loaded cores), time in which the CS system compiles, and
# each later one in 8 to 34 ms instead of 0.2 ms. The functions themselves run equally early (20 to 40 ms) and
# need the same memory (34 MiB each, 43 MiB for the server), but a resource tracker adds 7 MiB. Its socket
# needs a path that is shorter than many a TMPDIR, and is not removed when it is killed.
class _ForkServer:
    """The client of the fork server, which it starts when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[socket.socket, subprocess.Popen[bytes]], _ForkServer] | None = None
        self._is_adopted = False

    def fork(self, request: bytes, descriptors: Sequence[int], may_fork: bool) -> None:
        """Fork a process that gets the descriptors; does not wait for it."""
        with self._lock:
            if not self._is_adopted and (self._process is None or self._process.poll() is not None):
                self._start()
            shared = [self._requests.fileno()] if may_fork else []
            socket.send_fds(self._requests, [request], [*descriptors, *shared])

    def prepare(self) -> None:
        """Start the server."""
        with self._lock:
            if self._process is None:
                self._start()

    def stop(self) -> None:
        """End the server, if this process has started one."""
        if self._finalizer is not None:
            self._finalizer()

    def adopt(self, descriptor: int) -> None:
        """Use the fork server of the parent process, by its socket."""
        self._requests = socket.socket(fileno=descriptor)
        self._is_adopted = True

    def _start(self) -> None:
        self._process = None
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Ctrl-C is for the CS system, which ends the processes that it has started. SIGINT is blocked in them
        # from their start, when they do not have their own session yet.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "cs_system", "fork-server"],
                    stdin=theirs.fileno(),
                    start_new_session=True,
                )
        except OSError:
            self._requests.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._finalizer = weakref.finalize(self, _stop_fork_server, self._requests, self._process)


def prepare_child_processes() -> None:
    """Start the fork server, which imports JAX, before the first child process is needed."""
    try:
        _fork_server.prepare()
    except OSError as error:
        _log_start_error("the fork server", error.strerror or str(error))


def _stop_fork_server(requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
    requests.close()
    # Not by the end of its input: it may still be importing JAX. Nor by SIGTERM, which MemoryX blocks in
    # itself, and so in this process. The processes that it has started end with their owner.
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)


_fork_server = _ForkServer()


def run_fork_server() -> None:
    """Fork a process for each request on the socket at standard input, until that is closed."""
    use_infrequent_collection()
    set_up_logging(LogOptions.of_parent(os.environ))
    requests = socket.socket(fileno=os.dup(0))
    # The children must not inherit the socket as standard input.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for module in _PRELOADED:
        import_module(module)
    gc.freeze()  # keeps the memory pages shared with the forked processes
    fork_on_request(requests)


def fork_on_request(requests: socket.socket) -> None:
    """Fork a process for each request on a socket, until that is closed; report their ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    pid, status = key.data
                    _, code, usage = os.wait4(pid, 0)
                    _report(status, os.waitstatus_to_exitcode(code), min(usage.ru_maxrss, _MAX_NUMBER))
                    os.close(status)
                    continue
                data, descriptors, flags, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
                if not data:  # the CS system is gone, and its child processes end by themselves
                    return
                request = json.loads(data)
                try:
                    if flags & socket.MSG_CTRUNC:  # some of the descriptors are lost
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    pid, ended = _fork(request, *descriptors)
                except OSError as error:
                    _log_start_error(request["name"], error.strerror or str(error))
                    if len(descriptors) > 1:
                        _report(descriptors[1], -(error.errno or errno.EAGAIN))
                else:
                    status = descriptors.pop(1)
                    _report(status, pid)
                    selector.register(ended, selectors.EVENT_READ, (pid, status))
                for descriptor in descriptors:
                    os.close(descriptor)


def _fork(request: dict[str, Any], lifeline: int, status: int, *own: int) -> tuple[int, int]:
    """Fork a process; return its pid, and a descriptor that is readable once it has ended.

    Raises:
        OSError: there are too many processes or descriptors, or not enough memory.
    """
    pid = os.fork()
    if not pid:
        _run(request, lifeline, [*own])
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _log_start_error(name: str, reason: str) -> None:
    log.error(
        "cannot start %s: %s; free memory, or raise the limits of processes and files (`ulimit -u -n`, "
        "pids.max and memory.max of the cgroup)",
        name,
        reason,
    )


def _report(status: int, *numbers: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the CS system has dropped the process
        os.write(status, b"".join(number.to_bytes(NUMBER_BYTES, "little", signed=True) for number in numbers))


def _run(request: dict[str, Any], lifeline: int, own: list[int]) -> NoReturn:
    """Run the function of a request in the new process."""
    try:
        # Closes the log file, which its handler opens again for the next line.
        logging.shutdown()
        for entry in list(Path("/proc/self/fd").iterdir()):
            if int(entry.name) not in {0, 1, 2, lifeline, *own}:
                with contextlib.suppress(OSError):  # the descriptor of the directory itself
                    os.close(int(entry.name))
        os.setsid()
        Path("/proc/self/comm").write_text(str(request["name"]))
        # Before the import, so that the process ends with its owner even while it imports.
        threading.Thread(target=_end_with_owner, args=(lifeline,), daemon=True).start()
        if request["may_fork"]:
            _fork_server.adopt(own.pop())
        module, name = request["run"]
        end_process(getattr(import_module(module), name)(*request["arguments"], *own))
    except CsSystemError as error:
        log.error("%s", error)
        end_process(error.exit_code)
    except BaseException:
        log.exception("internal error of %s", request["name"])
        end_process(SystemBugError.exit_code)


def _end_with_owner(lifeline: int) -> None:
    """End this process, whatever it is doing, when its owner is gone or has closed the lifeline."""
    os.read(lifeline, 1)
    end_process(0)
