"""The leader of a group on several hosts: it knows the members that are there, and starts wafers on them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
from pathlib import Path
from typing import Any

from cs_stream.sockets import name_of, shut_down
from cs_system.errors import GroupError, PortInUseError
from cs_system.swarmx.channel import HANDSHAKE_S, Channel, welcome
from cs_system.swarmx.hosts import Hosts
from cs_system.swarmx.place import GroupPlace, Meeting

log = logging.getLogger("cs_system.server")

_BACKLOG = 64
_MISSING_S = 5.0
"""So long a run waits for a member that has gone and may come back."""
_END_TIMEOUT_S = 7.0
"""A member takes up to 5 s to end a wafer."""


class Members:
    """See `Machines`: a wafer of a run is on this machine, the others are on the hosts that have joined.

    Args:
        place: Of the group, whose file is written.
        host: Address to listen on, on any free port.
        name: The host that the others use.

    Raises:
        PortInUseError: it cannot be listened on.
        BadOptionError: the file cannot be written.
    """

    def __init__(self, place: GroupPlace, host: str, name: str) -> None:
        self._place, self._host = place, host
        self._token = secrets.token_hex(32)
        self._changed = threading.Condition()
        self._members: list[_Member] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise PortInUseError.at(host, 0, "--host", error.strerror or str(error)) from error
        try:
            Meeting(name, self._listener.getsockname()[1], self._token).write(place.file)
        except BaseException:
            self._listener.close()
            raise
        threading.Thread(target=self._accept, daemon=True).start()
        log.info("waiting for %d more CS systems of the group: %s", place.count - 1, place.file)

    @property
    def is_complete(self) -> bool:
        """Whether all systems of the group are there."""
        return len(self._members) >= self._place.count - 1

    def missing(self, count: int) -> GroupError:
        """Not so many systems are there."""
        here = ["this one", *(member.host for member in self._members)]
        return GroupError(
            f"{len(here)} of {count} CS systems of the group are there ({', '.join(here)}); look at the logs "
            "of the others, and start them again (`cs_system member --group-file=FILE`, or the Slurm step)"
        )

    def gather(self, count: int) -> Hosts:
        """See `Machines`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._members) >= count - 1, _MISSING_S):
                raise self.missing(count)
            members = sorted(self._members, key=lambda member: member.number)[: count - 1]
        return Hosts(self._host, members[0].channel.own_host, members)

    def close(self) -> None:
        """Lets the members go; removes the file."""
        _remove(self._place.file)
        shut_down(self._listener)
        self._listener.close()
        with self._changed:
            members, self._members = self._members, []
        for member in members:
            with contextlib.suppress(ConnectionError):
                member.channel.send("bye")
            member.channel.close()

    # The threads

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                sock, address = self._listener.accept()
                arguments = (sock, name_of(address))
                threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(self, sock: socket.socket, address: str) -> None:
        channel = Channel(sock)
        channel.limit(HANDSHAKE_S)
        try:
            host, number = welcome(channel, self._token)
        except (ConnectionError, ValueError, TypeError) as error:
            log.warning("%s is no member of the group: %s", address, error)
            channel.close()
            return
        channel.limit(None)
        member = _Member(channel, host, number)
        self._add(member)
        try:
            while True:
                member.take(channel.receive())
        except ConnectionError as error:
            member.lost()
            self._lose(member, error)
        channel.close()

    def _add(self, member: _Member) -> None:
        with self._changed:
            self._members.append(member)
            self._changed.notify_all()
            log.info("CS system %d of %d: %s", len(self._members) + 1, self._place.count, member.host)
            if self.is_complete and self._place.step_nodes:
                _remove(self._place.file)  # tasks of a step do not come back

    def _lose(self, member: _Member, error: ConnectionError) -> None:
        with self._changed:
            if member in self._members:
                self._members.remove(member)
                log.error("the CS system on %s has gone: %s", member.host, error)


class _Member:
    """See `Member`; and the wafer there, of which there is one at a time: see `Wafer`."""

    exit_code = None

    def __init__(self, channel: Channel, host: str, number: int) -> None:
        self.channel, self.host, self.number = channel, host, number
        self._token = ""
        self._ended = threading.Event()

    def take(self, message: dict[str, Any]) -> None:
        """What the member says."""
        if message["kind"] == "ended" and message.get("token") == self._token:
            self._ended.set()

    def lost(self) -> None:
        """Says that the host has gone, and the wafer with it."""
        self._token = ""
        self._ended.set()

    def start(self, port: int, token: str, rank: int) -> _Member:
        """See `Member`.

        Raises:
            GroupError: the host has gone.
        """
        self._token = token
        self._ended.clear()
        try:
            self.channel.send("start", port=port, token=token, rank=rank)
        except ConnectionError:
            raise GroupError(f"the CS system on {self.host} has gone; start the job again") from None
        return self

    @property
    def has_ended(self) -> bool:
        """See `Wafer`."""
        return self._ended.is_set()

    def kill(self) -> None:
        """See `Wafer`."""
        with contextlib.suppress(ConnectionError):
            self.channel.send("end")

    def end(self) -> None:
        """See `Wafer`."""
        with contextlib.suppress(ConnectionError):
            self.channel.send("end")
            self._ended.wait(_END_TIMEOUT_S)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()
