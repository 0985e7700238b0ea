"""When a CS system counts as gone, and where it is."""

from __future__ import annotations

import selectors
import socket

import pytest

from csrun.system_watch import Presence, SystemWatch, system_address


@pytest.mark.parametrize(
    ("command", "default", "expected"),
    [
        (("python", "run.py", "--cs_ip=10.0.0.1"), "", ("10.0.0.1", 9000)),
        (("python", "run.py", "--cs_ip", "cs-1:9001"), "", ("cs-1", 9001)),
        (("run", "--cs-ip=cs-1"), "", ("cs-1", 9000)),
        (("run", "--cs_ip=a", "--cs_ip=b"), "", ("b", 9000)),
        (("run", "--cs_ip=[::1]:9005"), "", ("::1", 9005)),
        (("run", "--cs_ip=fe80::1"), "", ("fe80::1", 9000)),
        (("run", "--cs_ip=[fe80::1]"), "", ("fe80::1", 9000)),
        (("run", "--cs_ip"), "", None),
        (("run", "--cs_ip="), "10.0.0.2", None),
        (("run", "--cs_ip=host:port"), "", None),
        (("run", "--cs_ip=host:99999"), "", None),
        (("run",), "10.0.0.2:9100", ("10.0.0.2", 9100)),
        (("run",), "", None),
        (("run", "--cs_ip_list=10.0.0.1"), "", None),
    ],
)
def test_the_address_is_that_of_the_command_else_the_sites(
    command: tuple[str, ...], default: str, expected: tuple[str, int] | None
) -> None:
    assert system_address(command, default) == expected


def test_a_system_that_was_never_there_cannot_be_gone() -> None:
    presence = Presence()
    for _ in range(10):
        presence.failed("Connection refused")
    assert not presence.gone


def test_only_failures_in_a_row_count() -> None:
    presence = Presence()
    presence.connected(10.0)
    presence.failed("Connection refused")
    presence.failed("Connection refused")
    presence.connected(14.0)
    presence.failed("Connection refused")
    presence.failed("timed out")
    assert not presence.gone
    presence.failed("timed out")
    assert presence.gone
    assert presence.missing_s(20.0) == 6.0
    assert presence.reason == "timed out"


def test_the_watch_notices_a_listener_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csrun.system_watch.CONNECT_INTERVAL_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        watch = SystemWatch("127.0.0.1", port)
        server.accept()[0].close()
    with selectors.DefaultSelector() as selector:
        selector.register(watch, selectors.EVENT_READ)
        assert selector.select(10)
    assert watch.gone
    assert watch.text.startswith(f"the CS system at 127.0.0.1:{port} is gone: no connection for 0 s")
    watch.close()
