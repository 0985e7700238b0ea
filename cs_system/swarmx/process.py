"""The process of a wafer on this machine, as whoever starts it sees it."""

from __future__ import annotations

from cs_system.processes import OwnProcess


class WaferProcess(OwnProcess):
    """A wafer of a group. It ends with `end`, when the CS system hangs up, and with this process.

    Args:
        leader: Host and port where the CS system waits for its wafers.
        token: Its secret.
        rank: Of the wafer in its group.

    Attributes:
        host: Empty: it is on the machine of whoever asks.
    """

    host = ""

    def __init__(self, leader: tuple[str, int], token: str, rank: int) -> None:
        super().__init__(f"cs_wafer_{rank}", _compute, [*leader, token, rank])


def _compute(host: str, port: int, token: str, rank: int) -> int:
    from cs_system.engine.device import limit_threads
    from cs_system.swarmx.member import serve

    limit_threads(None)
    return serve((host, port), token, rank)
