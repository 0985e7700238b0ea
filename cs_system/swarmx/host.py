"""A host that is a member of a group: it waits for runs, and has a wafer's process for each."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from pathlib import Path
from typing import NoReturn

from cs_system.errors import GroupError
from cs_system.swarmx.channel import HANDSHAKE_S, Channel, greet
from cs_system.swarmx.place import Meeting
from cs_system.swarmx.process import WaferProcess

log = logging.getLogger("cs_system.server")

JOIN_TIMEOUT_S = 120.0
_POLL_S = 0.1


class _EndedError(Exception):
    """By a signal."""

    def __init__(self, number: int) -> None:
        self.code = 130 if number == signal.SIGINT else 0


def serve(file: Path, number: int = 1, timeout_s: float = JOIN_TIMEOUT_S) -> int:
    """Is a member of a group until its leader ends, or SIGTERM or SIGINT comes.

    Args:
        file: Of the group.
        number: By which the members are in order.
        timeout_s: How long the leader is waited for.

    Returns:
        The exit code: 0 at the leader's end and after SIGTERM, 130 after SIGINT.

    Raises:
        GroupError: there is no leader, it refuses this host, or it has gone without a word.
    """
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _on_signal)
    wafer = _Wafer()
    try:
        channel, leader = joined(file, number, timeout_s)
        log.info("a member of the group of CS systems that %s leads", leader)
        try:
            _follow(channel, leader, wafer)
        except ConnectionError as error:
            raise GroupError(
                f"the CS system at {leader}, which leads the group, has gone: {error}; start it again, and "
                "its members"
            ) from error
        log.info("the group has ended")
    except _EndedError as ended:
        return ended.code
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        wafer.end(0.0)
    return 0


def joined(file: Path, number: int, timeout_s: float) -> tuple[Channel, str]:
    """A connection to the leader, and its host.

    The file is read again and again: a job that was requeued may have left an old one, of the same name.

    Raises:
        GroupError: there is none in time, or it refuses this host.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            meeting = Meeting.read(file)
            return _connected(meeting, number), meeting.host
        except OSError as error:
            fault = f"{file}: {error.strerror or error}"
        if time.monotonic() > deadline:
            raise GroupError(
                f"no group of CS systems to join within {timeout_s:g} s: {fault}; look at the log of its "
                "leader (`cs_system serve --num-csx=N`); --group-file must be a file that all hosts share"
            )
        time.sleep(_POLL_S)


def _connected(meeting: Meeting, number: int) -> Channel:
    channel = Channel(socket.create_connection((meeting.host, meeting.port), HANDSHAKE_S))
    try:
        channel.limit(HANDSHAKE_S)
        greet(channel, meeting.token, socket.gethostname(), number)
        channel.limit(None)
    except BaseException:
        channel.close()
        raise
    return channel


def _follow(channel: Channel, leader: str, wafer: _Wafer) -> None:
    """Does what the leader says until its end; raises ConnectionError where it has gone."""
    while True:
        message = channel.receive()
        if message["kind"] == "start":
            token = message["token"]
            process = wafer.start((leader, message["port"]), token, message["rank"])
            threading.Thread(target=_report, args=(process, channel, token), daemon=True).start()
        elif message["kind"] == "end":
            wafer.end()
        elif message["kind"] == "bye":
            return


def _report(process: WaferProcess, channel: Channel, token: str) -> None:
    """Tells the leader when a wafer has ended."""
    process.wait()
    with contextlib.suppress(ConnectionError):
        channel.send("ended", token=token)


class _Wafer:
    """Of the run under way."""

    def __init__(self) -> None:
        self._process: WaferProcess | None = None

    def start(self, leader: tuple[str, int], token: str, rank: int) -> WaferProcess:
        self.end(0.0)
        self._process = WaferProcess(leader, token, rank)
        return self._process

    def end(self, timeout_s: float = 5.0) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(timeout_s)


def _on_signal(number: int, _: object) -> NoReturn:
    raise _EndedError(number)
