"""The CS system of a job: asked before the start, and watched while the job runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from csrun.errors import CsrunError
from csrun.tasks.environment import Toolkit

_COMPILES = ("compile_only", "validate_only")


def check_system(
    command: Sequence[str],
    site_address: str,
    toolkit: Toolkit,
    *,
    wait: bool,
    certain: bool,
    variable: str = "",
) -> str | None:
    """Whether the system that a command will use answers and is free.

    Args:
        command: the user's words.
        site_address: of the site's system, for a command that names none; "" for none.
        toolkit: whose client asks.
        wait: the job queues for a busy system.
        certain: what is seen from this machine is what the job will see, now.
        variable: what the user's `CS_IP` says; it names the system of a command that does not.

    Returns:
        What the user should know; None for nothing.

    Raises:
        CsrunError: the job cannot train: a wrong address, something else at the address, a busy system.
    """
    of_command = named_system(command)
    named = variable if of_command is None else of_command
    address = named or ("" if of_command is not None else site_address)
    if not address:
        return None
    try:
        status = ask_system(address, toolkit)
    except SystemQueryError as error:
        if not error.asked:
            return str(error)
        if error.exit_code == 2 and named:
            raise
        if named and certain:
            raise
        seen_from = "" if certain else ", seen from this machine"
        return f"{error}{seen_from}"
    run: Mapping[str, Any] | None = status.get("run")
    if run is None or only_compiles(command) or not certain:
        return None
    held = f"the CS system at {address} is busy: held by {run['job']} since {_clock(run['since'])}"
    if wait:
        return f"{held}; the job waits for it before its first step"
    if named:
        raise CsrunError(
            f"{held}; expected a free one: try again later, or queue for it with csrun_wse --wait"
        )
    return held


def only_compiles(command: Sequence[str]) -> bool:
    """Whether a command says that its program compiles or validates and does no more."""
    words = [word.lstrip("-") for word in command]
    modes = {f"{flag}={mode}" for flag in ("mode", "m") for mode in _COMPILES}
    return any(word in modes or word in _COMPILES for word in words)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


ANSWER_LIMIT_S = 20.0
_PREFIX = "cs_system: error: "


class SystemQueryError(CsrunError):
    """The system does not answer, or something else is at its address.

    Attributes:
        exit_code: 2 for what is no address.
        asked: the system's client has said so; else it could not be run, and nothing is known of the system.
    """

    def __init__(self, text: str, exit_code: int = 1, *, asked: bool = True) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.asked = asked


def ask_system(address: str, toolkit: Toolkit) -> Mapping[str, Any]:
    """What `cs_system status --json` says of the system at an address.

    Raises:
        SystemQueryError: it is no address, nothing answers there, or something else does.
    """
    words = [str(toolkit.python), "-m", "cs_system", "status", "--json", f"--cs_ip={address}"]
    # -m searches in the current directory first, so it has to be one that is ours.
    cwd = toolkit.import_root or toolkit.bin_dir
    try:
        done = subprocess.run(
            words, cwd=cwd, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemQueryError(f"the CS system at {address} was not asked: {error}", asked=False) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        if not said.startswith(_PREFIX):
            raise SystemQueryError(f"the CS system at {address} was not asked: {said}", asked=False)
        raise SystemQueryError(said.removeprefix(_PREFIX), done.returncode)
    answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[0])
    return answer


PORT = 9000
CONNECT_INTERVAL_S = 2.0
CONNECT_LIMIT_S = 2.0
FAILURES = 3
"""With the times above, a system that is gone is noticed within 10 s, even one that does not refuse."""
CHIEF_REPORT_LIMIT_S = 5.0
"""So long the chief may take for its own words about it."""


def system_address(command: Sequence[str], default: str = "") -> tuple[str, int] | None:
    """Host and port of the CS system that a command names with --cs_ip, else of `default`; None for neither.

    The last --cs_ip counts, as it does for the program.
    """
    named = named_system(command)
    text = default if named is None else named
    host, colon, port = text.strip().rpartition(":")
    if not colon or "]" in port or (text.count(":") > 1 and not text.startswith("[")):  # IPv6 without a port
        host, port = text.strip(), str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        return None
    return host, int(port)


def named_system(command: Sequence[str]) -> str | None:
    """What a command says of its CS system with --cs_ip; None where it says nothing."""
    text = None
    for number, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == "__cs_ip":
            text = value if equals else "".join(command[number + 1 : number + 2])
    return text


class Presence:
    """Decides from attempts to connect whether a system is gone: seen once, then missed often. Pure."""

    def __init__(self) -> None:
        self._seen_at_s: float | None = None
        self._missed = 0
        self.reason = ""

    def connected(self, now_s: float) -> None:
        """An attempt has succeeded."""
        self._seen_at_s = now_s
        self._missed = 0

    def failed(self, reason: str) -> None:
        """An attempt has failed."""
        if self._seen_at_s is not None:
            self._missed += 1
            self.reason = reason

    @property
    def gone(self) -> bool:
        """Whether it was there and is not any more."""
        return self._missed >= FAILURES

    def missing_s(self, now_s: float) -> float:
        """Since when it has not answered."""
        return 0.0 if self._seen_at_s is None else now_s - self._seen_at_s


class SystemWatch:
    """Watches one address until the system behind it is gone. Only a system that was there can be.

    `fileno()` becomes readable when it is gone. Start it after all forks.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._presence = Presence()
        self._missing_s = 0.0
        self._ended = threading.Event()
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="system watch", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._read_end

    @property
    def gone(self) -> bool:
        """Whether the system was there and is not any more."""
        return self._presence.gone

    @property
    def text(self) -> str:
        """What to tell the user when it is gone."""
        host, port = self._address
        return (
            f"the CS system at {host}:{port} is gone: no connection for {self._missing_s:.0f} s "
            f"({self._presence.reason}); the job cannot go on without it"
        )

    def close(self) -> None:
        """Ends the watch."""
        self._ended.set()
        self._thread.join(2 * CONNECT_LIMIT_S)
        if not self._thread.is_alive():  # a name server may hold it longer
            os.close(self._read_end)
            os.close(self._write_end)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                socket.create_connection(self._address, CONNECT_LIMIT_S).close()
                self._presence.connected(time.monotonic())
            except OSError as error:
                self._presence.failed(error.strerror or str(error))
            if self._presence.gone:
                self._missing_s = self._presence.missing_s(time.monotonic())
                with suppress(OSError):
                    os.write(self._write_end, b".")
                return
            self._ended.wait(CONNECT_INTERVAL_S)
