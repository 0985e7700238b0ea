"""Several wafers that share a batch train to the same numbers as one."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cs_system.address import SystemAddress
from cs_system.errors import ArtifactRefusedError, StateMismatchError
from cs_system.memoryx.config import MemoryxConfig, start_memoryx
from cs_system.swarmx.group import GroupEngine
from cs_system.swarmx.hosts import RunHosts
from cs_system.swarmx.member import wait_for_listener
from tests.processes import listening_sockets

from .groups import group, pids_of, train
from .streamed_steps import Streamed


def check_numbers(stack: Streamed, place: MemoryxConfig, count: int) -> None:
    """Losses and weights are those of the whole step; two runs are equal bit for bit."""
    expected, expected_state = stack.whole
    with group(stack, place, count) as engine:
        begin = engine.snapshot()
        losses = train(engine, stack)
        for name, value in begin.read().items():  # as it was before the steps
            np.testing.assert_array_equal(value, stack.state[name], err_msg=name)
        state = engine.fetch_state()
        with pytest.raises(StateMismatchError, match=r"'state\.model\.nothing' is not state"):
            engine.fetch_state(["state.model.nothing"])
        engine.put_state(stack.state)
        again = train(engine, stack)
    np.testing.assert_allclose(np.concatenate(losses), [outputs[0] for outputs in expected], rtol=1e-5)
    for name, value in expected_state.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert [loss.tobytes() for loss in again] == [loss.tobytes() for loss in losses]


def test_two_wafers(stack: Streamed, memoryx: tuple[str, int]) -> None:
    check_numbers(stack, MemoryxConfig((memoryx,)), 2)


@pytest.mark.soak
def test_four_wafers(stack: Streamed, memoryx: tuple[str, int]) -> None:
    check_numbers(stack, MemoryxConfig((memoryx,)), 4)


def test_a_batch_that_cannot_be_shared_equally(stack: Streamed) -> None:
    with pytest.raises(ArtifactRefusedError, match="a batch of 4 samples cannot be shared equally by 3"):
        GroupEngine(stack.compiled, stack.schedule, stack.data, MemoryxConfig(), 3)
    with pytest.raises(ArtifactRefusedError, match="by 8 CS systems"):
        GroupEngine(stack.compiled, stack.schedule, stack.data, MemoryxConfig(), 8)


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an IPv6 address, ::1."""


def test_only_this_machine_reaches_the_wafers_of_a_system_on_it(
    stack: Streamed, memoryx: tuple[str, int]
) -> None:
    with group(stack, MemoryxConfig((memoryx,)), 2) as engine:
        wafers = pids_of(engine)
        addresses = {address for pid in wafers for address, _ in listening_sockets(pid)}
    assert len(wafers) == 2
    assert addresses
    assert addresses <= LOOPBACK


def test_the_secrets_of_a_run_are_in_no_command_line_and_no_log(
    stack: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hosts, found = RunHosts(), []

    class Pool:
        def gather(self, count: int) -> RunHosts:
            return hosts

    def start(*arguments: Any) -> Any:
        found.append(start_memoryx(*arguments))
        return found[-1]

    monkeypatch.setattr("cs_system.swarmx.group.start_memoryx", start)
    place = MemoryxConfig((), tmp_path)
    engine = GroupEngine(stack.compiled, stack.schedule, stack.data, place, 2, Pool())
    try:
        engine.put_state(stack.state)
        train(engine, stack, 1)
        shown = caplog.text.encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                shown += (process / "cmdline").read_bytes()
    finally:
        engine.free()
    ((_, _, secret),) = found
    assert b"fork-server" in shown
    assert len({secret, hosts.token}) == 2
    assert secret.encode() not in shown
    assert hosts.token.encode() not in shown
    assert hosts.token not in repr(hosts)


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
