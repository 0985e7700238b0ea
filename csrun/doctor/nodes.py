"""Check of `csrun doctor` on the nodes of a cluster: a probe that a scheduler runs once on each of them."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from cs_toolkit.network.frames import FrameError, LineChannel
from cs_toolkit.security.proofs import is_proof
from cs_toolkit.security.tls_connection import TlsConnection
from csrun.doctor import Finding
from csrun.doctor.probe import SECRET_VARIABLE
from csrun.schedulers.hostlist import compress_hostlist
from csrun.tasks.environment import Toolkit
from csrun.tasks.place import PlaceReader, reader_arguments
from csrun.tasks.processes import end_command

START_LIMIT_S = 20
ANSWER_LIMIT_S = 20.0
SKEW_LIMIT_S = 2.0  # logs of several nodes are compared; munge fails from 300 s
_LINE_BYTES = 65_536
_LINE_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """How a scheduler runs a command on nodes.

    Attributes:
        prefix: command line in front of the command, which runs once on each node.
        count: number of nodes.
        environment: of the scheduler's command.
        read_place: reads the name of the node and the address of this machine.
        ports: range of ports of this machine that nodes can connect to; None for any.
        ports_setting: where that range is configured; "" for nowhere.
        is_busy: returns True if an error message only means that no node is free.
        shorten: returns an error message in one line.
        example: command line for the user that tries the same.
        end_signals: signals that end the scheduler's command.
    """

    prefix: tuple[str, ...]
    count: int
    environment: Mapping[str, str]
    read_place: PlaceReader
    ports: tuple[int, int] | None
    ports_setting: str
    is_busy: Callable[[str], bool]
    shorten: Callable[[str], str]
    example: str
    end_signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a probe.

    Attributes:
        shared: the doctor's file is visible under the same path.
        missing: paths that a job needs and that do not exist.
        skew_s: clock of the node minus that of this machine, plus the latency of the message.
    """

    node: str
    shared: bool
    missing: tuple[str, ...]
    skew_s: float


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """The result of the probe job: the answers of the nodes, and the error message of the scheduler."""

    answers: tuple[Answer, ...]
    complaint: str


def probe_nodes(access: NodeAccess, toolkit: Toolkit, cwd: Path, needed: Sequence[str]) -> ProbeRun:
    """Run the probe on nodes, without waiting long for a busy cluster.

    Args:
        access: to the nodes.
        toolkit: with the interpreter of the probe.
        cwd: directory that must be visible on all nodes.
        needed: further paths that every node must have.
    """
    # Nodes that see a file with this random name see the same directory.
    shared_file = cwd / f".csrun-doctor-{token_hex(8)}"
    shared_file.touch()
    try:
        with _listen(access.ports) as listener:
            # Only here: cryptography takes longer to load than everything else of csrun.
            from cs_toolkit.security.certificates import create_pinned_context

            context, certificate = create_pinned_context("csrun doctor")
            script = Path(__file__).with_name("probe.py")
            arguments = [
                *access.prefix,
                *[str(toolkit.python), "-I", "-S", str(script), *reader_arguments(access.read_place)],
                *[str(shared_file), socket.gethostname(), str(listener.getsockname()[1])],
                *[certificate, *needed],
            ]
            return _gather(arguments, access, listener, context, token_hex(16))
    finally:
        with suppress(OSError):
            shared_file.unlink()


def probe_findings(run: ProbeRun, access: NodeAccess) -> Iterator[Finding]:
    """Evaluate the answers. Pure."""
    if not run.answers:
        error = access.shorten(run.complaint) or "no node has answered"
        if access.is_busy(run.complaint):
            text = f"not checked: {access.count} nodes were not free within {START_LIMIT_S} s"
            yield Finding("on the nodes", "note", text, "run it again later, or with fewer --nodes")
            return
        advice = f"try '{access.example}'; nodes must reach the ports of this machine"
        yield Finding("on the nodes", "fail", f"the probe did not run: {error}", advice)
        return
    nodes = compress_hostlist(sorted(answer.node for answer in run.answers))
    if len(run.answers) < access.count:
        text = f"only {nodes} of {access.count} nodes connected back to this machine"
        named = f" ({access.ports_setting} names them)" if access.ports_setting else ""
        advice = f"let the nodes reach this machine's ports{named}"
        yield Finding("connections", "fail", text, advice)
    else:
        yield Finding("connections", "ok", f"{nodes} connected back to this machine")
    blind = sorted(answer.node for answer in run.answers if not answer.shared)
    if blind:
        text = f"this directory is not the same on {compress_hostlist(blind)}"
        yield Finding("shared files", "fail", text, "work in a directory that all nodes share (see df -h .)")
    else:
        yield Finding("shared files", "ok", "all of them see this directory")
    missing = sorted({path for answer in run.answers for path in answer.missing})
    for path in missing:
        without = compress_hostlist(sorted(answer.node for answer in run.answers if path in answer.missing))
        yield Finding(
            "on the nodes", "fail", f"{path} does not exist on {without}", "put it where all nodes see it"
        )
    if not missing:
        yield Finding("on the nodes", "ok", "toolkit, image and mounted directories exist")
    worst = max(run.answers, key=lambda answer: abs(answer.skew_s))
    if abs(worst.skew_s) > SKEW_LIMIT_S:
        text = f"the clock of {worst.node} is {worst.skew_s:+.1f} s off this machine's"
        yield Finding("clocks", "fail" if abs(worst.skew_s) > 60 else "note", text, "set up NTP on the nodes")
    else:
        yield Finding("clocks", "ok", f"at most {abs(worst.skew_s):.1f} s apart")


def _listen(ports: tuple[int, int] | None) -> socket.socket:
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        listener = socket.socket()
        try:
            listener.bind(("", port))
        except OSError:
            listener.close()
            continue
        listener.listen(128)
        return listener
    raise OSError(f"no free port in {first}-{last}")


def _gather(
    arguments: Sequence[str],
    access: NodeAccess,
    listener: socket.socket,
    context: ssl.SSLContext,
    secret: str,
) -> ProbeRun:
    listener.settimeout(0.1)
    answers: list[Answer] = []
    with subprocess.Popen(
        arguments,
        # Not an argument, which all users of a node can see.
        env={**access.environment, SECRET_VARIABLE: secret},
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            deadline_s = time.monotonic() + START_LIMIT_S + ANSWER_LIMIT_S
            while len(answers) < access.count and time.monotonic() < deadline_s:
                # Before the look for an answer, which may arrive just before the command ends.
                ended = command.poll() is not None
                answer = _accept(listener, context, secret)
                if answer:
                    answers.append(answer)
                elif ended:
                    break
        finally:
            with suppress(subprocess.TimeoutExpired):
                command.wait(5)
            end_command(command, access.end_signals)
        complaint = command.stderr.read() if command.stderr else ""
    return ProbeRun(tuple(answers), complaint)


def _accept(listener: socket.socket, context: ssl.SSLContext, secret: str) -> Answer | None:
    """Return the answer of the next probe; None if none has connected."""
    try:
        accepted, _ = listener.accept()
    except TimeoutError:
        return None
    arrived_s = time.time()
    with accepted:
        try:
            connection = TlsConnection(accepted, context)
        except OSError:  # the peer has disconnected already
            return None
    with connection:
        try:
            connection.handshake(_LINE_LIMIT_S)
            channel = LineChannel(connection, _LINE_BYTES)
            result = channel.receive(time.monotonic() + _LINE_LIMIT_S)
            # Any user of the nodes can connect to this port.
            if not is_proof(result["secret"], secret):
                return None
            skew_s = result["time_s"] - arrived_s
            return Answer(result["node"], result["shared"], tuple(result["missing"]), skew_s)
        except (OSError, FrameError, KeyError, TypeError):
            return None
