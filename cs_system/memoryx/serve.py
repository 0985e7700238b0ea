"""The MemoryX process: it listens, and serves one wafer after the other."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from cs_stream.sockets import name_of, tune
from cs_system.engine.device import limit_threads, start_device
from cs_system.errors import BadOptionError, PortInUseError
from cs_system.memoryx.server import Connection, Groups

log = logging.getLogger("cs_system.memoryx")

_BACKLOG = 16
_ENDING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class MemoryxOptions:
    """Flags of `cs_system memoryx serve`.

    Attributes:
        host, port: To listen on; port 0 takes any free one.
        directory: Where state and gradients lie while a model trains.
        threads: That compute; None: one for each CPU.
        xla_cache: Directory of compiled functions; None keeps nothing.
    """

    host: str
    port: int
    directory: Path
    threads: int | None
    xla_cache: Path | None


def serve(options: MemoryxOptions) -> int:
    """Runs MemoryX until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        PortInUseError: the port cannot be listened on.
        BadOptionError: there is no such directory.
    """
    _check(options.directory)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # in all threads that follow
    try:
        listener = socket.create_server((options.host, options.port), backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PortInUseError.at(options.host, options.port, "--port", reason) from error
    _start(listener, options.directory, options.threads, options.xla_cache)
    place = name_of(listener.getsockname())
    log.info("MemoryX ready: --memoryx=%s, state in %s", place, options.directory)
    caught = signal.sigwait(_ENDING)
    return 130 if caught == signal.SIGINT else 0


def serve_own(listener: socket.socket, directory: Path) -> int:
    """Is the MemoryX of a CS system, on a socket that listens already, until something ends the process.

    Raises:
        BadOptionError: there is no such directory.
    """
    _check(directory)
    _start(listener, directory).join()
    return 0


def _check(directory: Path) -> None:
    if not directory.is_dir():
        raise BadOptionError(f"--memoryx-dir={directory}: expected a directory that exists")


def _start(
    listener: socket.socket, directory: Path, threads: int | None = None, xla_cache: Path | None = None
) -> threading.Thread:
    """Starts to serve."""
    threads = limit_threads(threads)
    limit_threads(1)  # for each function; the threads of updates call several at a time
    # Calls are short, and other threads wait for memory meanwhile: handing them to one more costs a third.
    start_device(xla_cache, dispatches_async=False, on_cpu=True)
    accepting = threading.Thread(target=_accept, args=(listener, directory, threads, Groups()), daemon=True)
    accepting.start()
    return accepting


def _accept(listener: socket.socket, directory: Path, threads: int, groups: Groups) -> None:
    while True:
        sock, address = listener.accept()
        tune(sock)
        log.info("wafer at %s", name_of(address))
        threading.Thread(target=_serve, args=(sock, directory, threads, groups), daemon=True).start()


def _serve(sock: socket.socket, directory: Path, threads: int, groups: Groups) -> None:
    with sock:
        Connection(sock, directory, threads, groups).serve()
    log.info("the wafer has hung up")
