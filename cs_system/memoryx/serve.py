"""The MemoryX process: it listens, and serves one wafer after the other."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from cs_stream.sockets import name_of, tune
from cs_system.engine import setup
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
        listen_fd: A socket that listens already, in place of these; given by a CS system that starts its own.
        directory: Where state and gradients lie while a model trains.
        threads: That compute; None: one for each CPU.
        xla_cache: Directory of compiled functions; None keeps nothing.
    """

    host: str
    port: int
    listen_fd: int | None
    directory: Path
    threads: int | None
    xla_cache: Path | None


def serve(options: MemoryxOptions) -> int:
    """Runs MemoryX until SIGTERM or SIGINT; one that a CS system has started, until that ends.

    Returns:
        The exit code: 0 after SIGTERM or the end of the CS system, 130 after SIGINT.

    Raises:
        PortInUseError: the port cannot be listened on.
        BadOptionError: there is no such directory.
    """
    if not options.directory.is_dir():
        raise BadOptionError(f"--memoryx-dir={options.directory}: expected a directory that exists")
    threads = setup.limit_threads(options.threads)
    setup.limit_threads(1)  # for each function; the threads of updates call several at a time
    if options.listen_fd is None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # in all threads that follow
    listener = _listen(options)
    # State lies in the memory of this machine, whatever other devices it has.
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Calls are short, and other threads wait for memory meanwhile: handing them to one more costs a third.
    setup.start_device(options.xla_cache, dispatches_async=False)
    threading.Thread(
        target=_accept, args=(listener, options.directory, threads, Groups()), daemon=True
    ).start()
    if options.listen_fd is None:
        place = name_of(listener.getsockname())
        log.info("MemoryX ready: --memoryx=%s, state in %s", place, options.directory)
        caught = signal.sigwait(_ENDING)
        return 130 if caught == signal.SIGINT else 0
    sys.stdin.buffer.read()  # until whoever has started this process is gone
    return 0


def _listen(options: MemoryxOptions) -> socket.socket:
    if options.listen_fd is not None:
        return socket.socket(fileno=options.listen_fd)
    try:
        return socket.create_server((options.host, options.port), backlog=_BACKLOG)
    except OSError as error:
        raise PortInUseError.at(options.host, options.port, "--port", error.strerror or str(error)) from error


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
