"""How the processes of a group find each other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from groups import group, pids_of
from streamed_steps import Streamed

from cs_system.address import SystemAddress
from cs_system.memoryx.place import MemoryxPlace
from cs_system.swarmx.devices import wait_for_listener

LISTENING = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an IPv6 address, ::1."""


def listening(pid: int) -> Iterator[str]:
    """Addresses, as the kernel writes them, where a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(link.readlink().name)
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in inodes:
                yield fields[1].partition(":")[0]


def test_only_this_machine_reaches_the_wafers_of_a_system_on_it(
    stack: Streamed, memoryx: tuple[str, int]
) -> None:
    with group(stack, MemoryxPlace((memoryx,)), 2) as engine:
        wafers = pids_of(engine)
        addresses = {address for pid in wafers for address in listening(pid)}
    assert len(wafers) == 2
    assert addresses
    assert addresses <= LOOPBACK


def test_a_listener_that_comes_later_is_waited_for() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = SystemAddress(*listener.getsockname())
        assert not wait_for_listener(address, timeout_s=0.05)
        found: list[bool] = []
        waiting = threading.Thread(target=lambda: found.append(wait_for_listener(address)))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        listener.listen()
        waiting.join()
    assert found == [True]
