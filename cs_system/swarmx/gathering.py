"""The wafers of a group come to their CS system."""

from __future__ import annotations

import hmac
import logging
import socket
from collections.abc import Sequence

from cs_stream.sockets import name_of, set_time_limit, tune
from cs_system.errors import MemoryxError, WaferLostError
from cs_system.memoryx.frames import FrameType, receive_header, receive_payload
from cs_system.swarmx.channel import notice_loss
from cs_system.swarmx.hosts import Wafer
from cs_system.swarmx.pulse import Pulse

log = logging.getLogger("cs_system.server")

_LOOK_S = 0.2
_WORD_S = 1.0
"""A stranger that connects and says nothing holds the others up for so long."""


def gathered(
    listener: socket.socket, token: str, wafers: Sequence[Wafer], pulse: Pulse
) -> list[socket.socket]:
    """The connections of all wafers, in their order; whoever else connects is sent away.

    Args:
        listener: Where they come to.
        token: Their secret.
        wafers: Which have been started.
        pulse: Is told of each one that has come.

    Raises:
        WaferLostError: one has ended, or does not come.
    """
    found: dict[int, socket.socket] = {}
    listener.settimeout(_LOOK_S)
    try:
        while len(found) < len(wafers):
            _check(wafers, found, pulse)
            try:
                sock, address = listener.accept()
            except TimeoutError:
                continue
            rank = _rank_of(sock, name_of(address), token)
            if rank is None or rank in found or rank >= len(wafers):
                sock.close()
            else:
                found[rank] = sock
    except BaseException:
        for sock in found.values():
            sock.close()
        raise
    return [found[rank] for rank in range(len(wafers))]


def _check(wafers: Sequence[Wafer], found: dict[int, socket.socket], pulse: Pulse) -> None:
    for rank, wafer in enumerate(wafers):
        if wafer.has_ended:
            raise WaferLostError.at_start(rank, len(wafers), wafer.exit_code, wafer.host)
        if rank in found:
            pulse.heard(rank)  # it speaks, and nobody listens before all are here
    overdue = pulse.overdue()
    if overdue is not None:
        rank, silent_s = overdue
        raise WaferLostError.silent(rank, len(wafers), silent_s)


def _rank_of(sock: socket.socket, address: str, token: str) -> int | None:
    """The place of a wafer in its group; None for a stranger."""
    tune(sock)
    notice_loss(sock)
    try:
        set_time_limit(sock, socket.SO_RCVTIMEO, _WORD_S)
        header = receive_header(sock)
        word = bytes(receive_payload(sock, header, len(token)))
        # A model is compiled for minutes, in which nothing comes; `Pulse` looks for what is late.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
    except (ConnectionError, MemoryxError) as error:
        log.warning("%s is no wafer of the group: %s", address, error)
        return None
    is_known = header.type is FrameType.JOIN and hmac.compare_digest(word, token.encode())
    return header.index if is_known else None
