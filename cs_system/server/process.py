"""The server process: ports, ready file, signals, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import grpc
import grpc.aio

from cs_stream.errors import ListenError
from cs_stream.receiver import Receiver
from cs_system.address import host_port, is_loopback
from cs_system.engine.machine import limit_threads
from cs_system.engine.xla_cache import XlaCache
from cs_system.errors import BadOptionError, PortInUseError
from cs_system.logs import name_current_run
from cs_system.monitoring.board import Board, Snapshot
from cs_system.part_spans import spans_directory
from cs_system.proto import cs_system_pb2_grpc
from cs_system.security import grpc_server_credentials
from cs_system.server.artifacts import ExecutableStore
from cs_system.server.engine_process import EnginePool
from cs_system.server.service import CsSystemServicer
from cs_system.server.state_directory import StateDirectory
from cs_system.server.status import read_status
from cs_system.server.system import System, SystemOptions
from cs_system.swarmx.membership import JOIN_TIMEOUT_S, GroupConfig, GroupLeader
from cs_system.transport import server_options
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.files import replace_file
from cs_toolkit.garbage import freeze_objects
from cs_toolkit.security.tls import Credentials

log = logging.getLogger("cs_system.server")

# The process ends within 5 s of a signal: a run that is still computing after these limits is abandoned.
_RUN_END_S = 2.5
_CALLS_END_S = 0.5

# Threads for calls that wait, of disks for example.
_BLOCKING_THREADS = 8

_POLL_S = 0.05
_SAMPLE_EVERY_S = 1.0
# An idle system has 22, its first run takes 10 more.
_MIN_FILES = 64
# A system that is killed loses at most this time of the use of its last job.
_STORE_EVERY_S = 60.0


@dataclass(frozen=True)
class ServerOptions:
    """The options of `cs_system serve`.

    Attributes:
        system: Options that describe the system.
        host: Address to listen on.
        port, data_port: 0 takes any free port.
        ready_file: Written when the server accepts calls, removed when it ends.
        threads: Number of compute threads; None: one for each CPU.
        cache_dir: Directory for programs and their compiled form; None stores nothing.
        cache_bytes: Limit for the programs in it.
        group: The group of systems on several hosts that this one leads; None: all are on this machine.
        state_dir: Directory for what survives a restart; None keeps nothing.
        http_host: Address of the status page.
        http_port: Its port, 0 for any free one; None serves no page.
        http_credentials: For TLS with browsers, which need a certificate, too; None: without TLS.
        credentials: For TLS with clients and the systems of the group; None: without TLS.
        shares_memory: Let workers on this machine give their batches in shared memory.
    """

    system: SystemOptions
    host: str
    port: int
    data_port: int
    ready_file: Path | None
    threads: int | None
    cache_dir: Path | None
    cache_bytes: int
    group: GroupConfig | None = None
    state_dir: Path | None = None
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    http_credentials: Credentials | None = None
    credentials: Credentials | None = None
    shares_memory: bool = True


def serve(options: ServerOptions) -> int:
    """Run the server until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        PortInUseError: a port cannot be listened on.
        BadOptionError: a file cannot be written, an address cannot be reached from other hosts, or the limit
            of open files is too low.
        GroupError: systems of the group are missing.
    """
    _raise_file_limit()
    threads = limit_threads(options.threads)
    if options.ready_file is not None:
        # A file left by a killed server must not be mistaken for this one's.
        options.ready_file.unlink(missing_ok=True)
    device = start_threads(1, "device")
    cache = None
    if options.cache_dir is not None:
        cache = XlaCache.of_this_cpu(options.cache_dir / "xla", options.cache_bytes)
    engines = EnginePool(threads, cache)
    code, busy = asyncio.run(_serve(options, device, engines))
    if busy:
        log.warning("the run did not end in time and is abandoned")
        # A normal exit of the interpreter would wait for the device's thread.
        logging.shutdown()
        os._exit(code)
    engines.close()
    device.shutdown()
    return code


def start_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Make a pool whose threads run already, so that no later call fails because none can be started."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    all_run = threading.Barrier(count)  # a thread that is idle would take the task of the next one
    for _ in range(count):
        pool.submit(all_run.wait)
    return pool


def _raise_file_limit() -> None:
    """Allow this process as many open files as it may have: each connection needs one.

    Raises:
        BadOptionError: these are too few for any job.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < _MIN_FILES:
        raise BadOptionError(
            f"this process may open {hard} files (`ulimit -n`), expected {_MIN_FILES} and some for each "
            "worker: raise the limit"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: ServerOptions, device: ThreadPoolExecutor, engines: EnginePool) -> tuple[int, bool]:
    signals = _Signals()
    asyncio.get_running_loop().set_default_executor(start_threads(_BLOCKING_THREADS, "blocking"))
    store = ExecutableStore(options.cache_dir and options.cache_dir / "executables", options.cache_bytes)
    with contextlib.ExitStack() as stack:
        try:
            receiver = Receiver(
                options.host,
                options.data_port,
                credentials=options.credentials,
                shares_memory=options.shares_memory,
            )
        except ListenError as error:
            raise PortInUseError.at(options.host, options.data_port, "--data-port", str(error)) from error
        stack.callback(receiver.close)
        leader = _make_leader(options)
        if leader is not None:
            stack.callback(leader.close)
        stack.enter_context(spans_directory())
        # It imports JAX in the meantime: only the first program has to wait for it, not the first call. The
        # processes of the system inherit the environment of this moment.
        engines.prepare()
        files = StateDirectory(options.state_dir)
        system = System(options.system, device, engines, receiver, store, leader, files)
        stack.enter_context(system.events)
        name_current_run(system.run_fields)
        server = grpc.aio.server(options=server_options(options.system.peer_timeout_s))
        cs_system_pb2_grpc.add_CsSystemServicer_to_server(CsSystemServicer(system), server)
        try:
            place = host_port(options.host, options.port)
            if options.credentials is None:
                port = server.add_insecure_port(place)
            else:
                port = server.add_secure_port(place, grpc_server_credentials(options.credentials))
        except RuntimeError as error:
            raise PortInUseError.at(options.host, options.port, "--port", _bind_error(options)) from error
        await server.start()
        board = Board(_take_snapshot(system, options, port))
        http_port = None
        if options.http_port is not None:
            # Imported here: it takes 0.2 s.
            from cs_system.monitoring.http_server import StatusServer

            page = StatusServer(board, options.http_host, options.http_port, options.http_credentials)
            stack.callback(page.close)
            http_port = page.port
        sampling = asyncio.create_task(_sample(system, options, port, board))
        stack.callback(sampling.cancel)
        try:
            deadline = time.monotonic() + JOIN_TIMEOUT_S
            while leader is not None and not leader.is_complete and not signals.is_caught:
                if time.monotonic() > deadline:
                    raise leader.missing(options.system.wafers)
                await asyncio.sleep(_POLL_S)
            freeze_objects()
            with _ReadyFile(options, port, receiver.address[1], http_port):
                caught = await signals.first()
                log.info("%s: shutting down", caught.name)
                try:
                    await asyncio.wait_for(system.shut_down(caught.name), _RUN_END_S)
                    busy = False
                except TimeoutError:
                    busy = True
        finally:
            await server.stop(_CALLS_END_S)
    log.info("stopped")
    return (130 if caught is signal.SIGINT else 0), busy


async def _sample(system: System, options: ServerOptions, port: int, board: Board) -> None:
    """Record a sample of the current run every second, and publish it for the status page."""
    stored_s = time.monotonic()
    while True:
        await asyncio.sleep(_SAMPLE_EVERY_S)
        system.sample()
        running = system.running_usage()
        if running is not None and time.monotonic() - stored_s >= _STORE_EVERY_S:
            stored_s = time.monotonic()
            await asyncio.to_thread(system.files.write_running, running)
        if options.http_port is not None:
            board.publish(_take_snapshot(system, options, port))


def _take_snapshot(system: System, options: ServerOptions, port: int) -> Snapshot:
    host = advertised_host(options.host, options.system.advertise)
    run = system.run
    return Snapshot(
        time.time(),
        read_status(system, host, port),
        system.totals(),
        system.granted,
        () if run is None else run.recorder.curve(),
        None if run is None else run.floorplan,
        None if options.credentials is None else _certificate_end(options.credentials),
    )


def _certificate_end(credentials: Credentials) -> float | None:
    """Return when a certificate ends, in seconds since the epoch; None while its files are replaced."""
    return _read_certificate_end(credentials.certificate, credentials.versions())


@lru_cache(maxsize=1)
def _read_certificate_end(path: Path, versions: object) -> float | None:
    from cs_toolkit.security.certificates import CertificateError, read_certificate

    try:
        return read_certificate(path).not_after.timestamp()
    except CertificateError:
        return None


def _make_leader(options: ServerOptions) -> GroupLeader | None:
    group = options.group
    if group is None:
        return None
    name = advertised_host(options.host, options.system.advertise)
    if group.step_nodes > 1 and is_loopback(options.host):
        raise _unreachable("--host", options.host)
    for memoryx, _, _ in options.system.memoryx.addresses:
        if is_loopback(memoryx) and not is_loopback(name):
            raise _unreachable("--memoryx", memoryx)
    return GroupLeader(group, options.host, name)


def _unreachable(option: str, host: str) -> BadOptionError:
    return BadOptionError(
        f"{option}={host}: only this machine reaches it, expected an address that the other hosts of the "
        "group reach (to listen on all: 0.0.0.0)"
    )


class _Signals:
    """The first SIGTERM or SIGINT shuts down gracefully, the second exits immediately."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[signal.Signals] = self._loop.create_future()
        self._shutting_down = False
        # Not with the event loop: its handlers are gone when it ends, and a second signal may come just then.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._shutting_down or self._loop.is_closed():
            os._exit(128 + number)
        self._shutting_down = True
        self._loop.call_soon_threadsafe(self._first.set_result, signal.Signals(number))

    @property
    def is_caught(self) -> bool:
        """True once a signal has arrived."""
        return self._first.done()

    async def first(self) -> signal.Signals:
        return await self._first


def _bind_error(options: ServerOptions) -> str:
    """Return the operating system's error for the port, which gRPC does not report."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return "the port was refused"


class _ReadyFile:
    """Reports where the server listens: in the log, and in a file for programs."""

    def __init__(self, options: ServerOptions, port: int, data_port: int, http_port: int | None) -> None:
        self._path = options.ready_file
        host = advertised_host(options.host, options.system.advertise)
        self._content = {
            "address": host_port(host, port),
            "data_address": host_port(host, data_port),
            "pid": os.getpid(),
            "version": TOOLKIT_VERSION,
            "fabric": options.system.fabric,
        }
        if http_port is not None:
            # By default the page listens only on this machine, whose advertised name does not lead to it.
            advertise = "" if is_loopback(options.http_host) else options.system.advertise
            name = advertised_host(options.http_host, advertise)
            scheme = "http" if options.http_credentials is None else "https"
            self._content["status_page"] = f"{scheme}://{host_port(name, http_port)}/"

    def __enter__(self) -> None:
        content = self._content
        log.info(
            "CS system (fabric %s, toolkit %s) ready: --cs_ip=%s, data plane %s",
            content["fabric"],
            content["version"],
            content["address"],
            content["data_address"],
        )
        if "status_page" in content:
            log.info("status page at %s", content["status_page"])
        if self._path is not None:
            try:
                replace_file(self._path, json.dumps(content) + "\n")
            except OSError as error:
                raise BadOptionError(
                    f"--ready-file={self._path}: cannot be written: {error.strerror}; name a file in a "
                    "writable directory"
                ) from error
        _notify_systemd("READY=1")

    def __exit__(self, *_: object) -> None:
        _notify_systemd("STOPPING=1")
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _notify_systemd(state: str) -> None:
    """Report a state to systemd if it has started this process (sd_notify(3), Type=notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            # '@' stands for the zero byte of an abstract address.
            notifier.sendto(state.encode(), address.replace("@", "\0", 1))


def advertised_host(host: str, advertise: str) -> str:
    """Return the host by which a server is reached, from other machines too if it listens to them.

    Args:
        host: Address that it listens on.
        advertise: Host given by the user; "" if none.
    """
    try:
        is_unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_unspecified = False
    if advertise or not is_unspecified:
        return advertise or host
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:  # the name of this machine cannot be resolved
        return "::1" if ":" in host else "127.0.0.1"
    return name
