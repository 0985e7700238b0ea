"""Status of a job's CS system: queried before the start, and monitored while the job runs."""

from __future__ import annotations

import os
import reprlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cs_toolkit.files import parse_json
from cs_toolkit.network.liveness import DEFAULT_PEER_TIMEOUT_S, SilenceTimer
from cs_toolkit.security.identity import CERTS_VARIABLE
from csrun.errors import CsrunError
from csrun.tasks.environment import Toolkit

PORT = 9000
ANSWER_LIMIT_S = 20.0
# With these times, a system that refuses connections is noticed within 10 s.
CONNECT_INTERVAL_S = 2.0
CONNECT_LIMIT_S = 2.0
MAX_FAILURES = 3
CHIEF_REPORT_LIMIT_S = 5.0  # time for the chief to report the loss itself
_COMPILES = ("compile_only", "validate_only")
_PREFIX = "cs_system: error: "


def check_system(
    command: Sequence[str],
    site_address: str,
    toolkit: Toolkit,
    *,
    wait: bool,
    certain: bool,
    variable: str = "",
    certs: str = "",
    doing: Callable[[str], None] = lambda activity: None,
) -> str | None:
    """Check that the CS system of a command answers and is free.

    Args:
        command: program and arguments of the user.
        site_address: of the site's system, for a command that names none; "" for none.
        toolkit: with the client of the system.
        wait: the job waits for a busy system.
        certain: the job starts now on this machine, and therefore finds the same status.
        variable: the user's CS_IP, which names the system of a command that names none.
        certs: the site's directory of the user's certificate; "" for none.
        doing: called with what is done next, for a user who waits.

    Returns:
        A notice for the user; None for none.

    Raises:
        CsrunError: the job cannot train: a wrong address, another service at the address, a busy system.
    """
    in_command = cs_ip_argument(command)
    named = variable if in_command is None else in_command
    address = named or ("" if in_command is not None else site_address)
    if not address:
        return None
    doing(f"asking the CS system at {address} whether it is free")
    try:
        statuses = ask_systems(address, toolkit, certs)
    except SystemQueryError as error:
        if not error.asked:
            return str(error)
        if error.exit_code == 2 and named:
            raise
        if named and certain:
            raise
        seen_from = "" if certain else ", seen from this machine"
        return f"{error}{seen_from}"
    if only_compiles(command) or not certain:
        return None
    problems = [problem for status in statuses if (problem := _problem(status)) is not None]
    if len(problems) < len(statuses):
        return None
    text = "; ".join(problems)
    if len(problems) > 1:
        text = f"none of the {len(problems)} CS systems is free: {text}"
    if wait and all(status.get("run") for status in statuses):
        return f"{text}; the job will wait for it before its first step"
    if named:
        raise CsrunError(
            f"{text}; expected a free system: try again later, or wait for it with csrun_wse --wait"
        )
    return text


def _problem(status: Mapping[str, Any]) -> str | None:
    """Return why a system takes no job now; None if it does."""
    run: Mapping[str, Any] | None = status.get("run")
    if run is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["since"]))
        return f"the CS system at {status['address']} is busy: held by {run['job']} since {since}"
    drained_by = status["admission"]["drained_by"]
    return f"the CS system at {status['address']} is drained by {drained_by}" if drained_by else None


def only_compiles(command: Sequence[str]) -> bool:
    """Return True if the arguments of a program say that it only compiles or validates."""
    arguments = [argument.lstrip("-") for argument in command]
    modes = {f"{flag}={mode}" for flag in ("mode", "m") for mode in _COMPILES}
    return any(argument in modes or argument in _COMPILES for argument in arguments)


class SystemQueryError(CsrunError):
    """The system does not answer, or another service is at its address.

    Attributes:
        exit_code: 2 for an invalid address.
        asked: the system's client has run; otherwise the status is unknown.
    """

    def __init__(self, text: str, exit_code: int = 1, *, asked: bool = True) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.asked = asked


def ask_systems(addresses: str, toolkit: Toolkit, certs: str = "") -> Sequence[Mapping[str, Any]]:
    """Return the status of the systems at one or more addresses from `cs_system status --json`.

    Systems that do not answer are left out if another one does.

    Args:
        addresses: of the systems, separated by commas.
        toolkit: with the client of the system.
        certs: directory of the user's certificate; "" for the one that the environment names.

    Raises:
        SystemQueryError: an address is invalid, nothing answers there, or another service does.
    """
    import subprocess  # only here: every start of csrun_cpu loads this module

    # A separate process: importing the client with gRPC would slow every launcher down.
    command = [str(toolkit.python), "-m", "cs_system", "status", "--json", f"--cs_ip={addresses}"]
    env = {**os.environ, CERTS_VARIABLE: certs} if certs else None
    # -m searches the current directory first, so it must be the toolkit's.
    cwd = toolkit.import_root or toolkit.bin_dir
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemQueryError(
            f"the CS system at {addresses} was not queried: {error}", asked=False
        ) from error
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if not message.startswith(_PREFIX):
            raise SystemQueryError(f"the CS system at {addresses} was not queried: {message}", asked=False)
        raise SystemQueryError(message.removeprefix(_PREFIX), done.returncode)
    try:
        return [_read_status(line) for line in done.stdout.splitlines()]
    except (ValueError, LookupError, TypeError, OverflowError, OSError):
        text = f"cs_system status prints {reprlib.repr(done.stdout)}, expected a status in JSON"
        raise SystemQueryError(f"the CS system at {addresses} was not queried: {text}", asked=False) from None


def _read_status(line: str) -> Mapping[str, Any]:
    """Read a status; errors are those of an object without the members that this package uses."""
    status: Mapping[str, Any] = parse_json(line)
    run, drained_by = status["run"], status["admission"]["drained_by"]
    texts = [status[name] for name in ("address", "name", "version", "state", "fabric")]
    texts += [drained_by or "", *([] if run is None else [run["job"]])]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("expected texts")
    if run is not None:
        time.localtime(run["since"])
    return status


def system_address(command: Sequence[str], default: str = "") -> tuple[str, int] | None:
    """Return host and port of the CS system of a command: that of --cs_ip, else of `default`, else None.

    None for several systems: the chief knows which of them the job uses.
    """
    named = cs_ip_argument(command)
    text = default if named is None else named
    if "," in text:
        return None
    host, colon, port = text.strip().rpartition(":")
    if not colon or "]" in port or (text.count(":") > 1 and not text.startswith("[")):  # IPv6 without a port
        host, port = text.strip(), str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        return None
    return host, int(port)


def cs_ip_argument(command: Sequence[str]) -> str | None:
    """Return the value of --cs_ip in a command; None without one."""
    # The last one, which the program uses, too.
    text = None
    for number, argument in enumerate(command):
        name, equals, value = argument.partition("=")
        if name.replace("-", "_") == "__cs_ip":
            text = value if equals else "".join(command[number + 1 : number + 2])
    return text


class Presence:
    """Decides from attempts to connect whether a system is lost. Pure.

    One attempt succeeded; then several were refused, or none was answered for the peer timeout.
    """

    def __init__(self, peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S) -> None:
        self._peer_timeout_s = peer_timeout_s
        self._silence: SilenceTimer | None = None
        self._seen_at_s: float | None = None
        self._missed = 0
        self.reason = ""

    def record_success(self, now_s: float) -> None:
        """Record a successful attempt."""
        self._seen_at_s = now_s
        self._missed = 0
        if self._silence is None:
            check_every_s = CONNECT_INTERVAL_S + CONNECT_LIMIT_S
            self._silence = SilenceTimer(self._peer_timeout_s, now_s, check_every_s)
        self._silence.heard(now_s)

    def record_failure(self, reason: str, now_s: float, *, is_refusal: bool) -> None:
        """Record a failed attempt."""
        # A system that has not answered yet is not lost: it may be unreachable from this machine.
        if self._silence is not None:
            self._silence.check(now_s)
            self._missed += is_refusal
            self.reason = reason

    @property
    def gone(self) -> bool:
        """True if the system is lost."""
        return self._missed >= MAX_FAILURES or (self._silence is not None and self._silence.is_over)

    def missing_s(self, now_s: float) -> float:
        """Return the time since its last answer."""
        return 0.0 if self._seen_at_s is None else now_s - self._seen_at_s


class SystemWatch:
    """Monitors an address until the system there is lost; only a system that has answered can be.

    `fileno()` becomes readable when it is lost. Create it after all forks.
    """

    def __init__(self, host: str, port: int, peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S) -> None:
        self._address = (host, port)
        self._presence = Presence(peer_timeout_s)
        self._missing_s = 0.0
        self._lost, self._ended = threading.Event(), threading.Event()
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="system watch", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._read_end

    @property
    def gone(self) -> bool:
        """True if the system is lost."""
        return self._lost.is_set()

    @property
    def text(self) -> str:
        """Message for the user when it is lost."""
        host, port = self._address
        return (
            f"the CS system at {host}:{port} is gone: no connection for {self._missing_s:.0f} s "
            f"({self._presence.reason}); the job cannot continue without it"
        )

    def close(self) -> None:
        """End the monitoring."""
        self._ended.set()
        self._thread.join(2 * CONNECT_LIMIT_S)
        if not self._thread.is_alive():  # name resolution may take longer
            os.close(self._read_end)
            os.close(self._write_end)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                socket.create_connection(self._address, CONNECT_LIMIT_S).close()
                self._presence.record_success(time.monotonic())
            except OSError as error:
                # A listener that is gone refuses; a stopped machine or a broken network is silent at first.
                is_refusal = isinstance(error, ConnectionRefusedError)
                reason = error.strerror or str(error)
                self._presence.record_failure(reason, time.monotonic(), is_refusal=is_refusal)
            if self._presence.gone:
                self._missing_s = self._presence.missing_s(time.monotonic())
                self._lost.set()  # after the time, which `text` states
                with suppress(OSError):
                    os.write(self._write_end, b".")
                return
            self._ended.wait(CONNECT_INTERVAL_S)
