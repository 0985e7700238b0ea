"""Several MemoryX processes that share the layers compute the same as one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cs_system.errors import BadOptionError, MemoryxError
from cs_system.memoryx.config import MemoryxAddress, MemoryxConfig, parse_memoryx_addresses
from cs_system.memoryx.engine import StreamedEngine
from cs_system.swarmx.group import GroupEngine
from cs_toolkit.layered_step import is_small, shards, traffic
from cs_toolkit.step import device_bytes

from .streamed_steps import Streamed, running_memoryx, wide_network

Run = tuple[list[bytes], dict[str, bytes]]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tuple[str, int], ...]]:
    """Addresses of three processes."""
    with ExitStack() as running:
        directory = tmp_path_factory.mktemp("memoryx")
        yield tuple(running.enter_context(running_memoryx(directory))[1] for _ in range(3))


def trained(engine: StreamedEngine | GroupEngine, steps: Streamed, last: int | None = None) -> Run:
    try:
        engine.put_state(steps.state)
        pending = [engine.dispatch([array[None] for array in batch], 0, 1) for batch in steps.batches[:last]]
        losses = [step.wait()["output_0"].tobytes() for step in pending]
        return losses, {name: array.tobytes() for name, array in engine.fetch_state().items()}
    finally:
        engine.free()


@pytest.mark.parametrize("make", ["stack", "wide"])
def test_numbers_are_those_of_one_process(
    make: str, stack: Streamed, three: tuple[tuple[str, int], ...]
) -> None:
    """Gradients are clipped by the norm of those of all processes."""
    steps = stack if make == "stack" else wide_network()
    assert any(call for step in steps.schedule.rounds for call in step.partial)
    one = trained(steps.engine(MemoryxConfig(three[:1])), steps)
    for count in (2, 3):
        assert trained(steps.engine(MemoryxConfig(three[:count])), steps) == one


def test_wafers_of_a_group_get_weights_of_all_processes(
    stack: Streamed, three: tuple[tuple[str, int], ...]
) -> None:
    def group(count: int) -> GroupEngine:
        place = MemoryxConfig(three[:count])
        return GroupEngine(stack.compiled, stack.schedule, stack.data, place, 2)

    assert trained(group(2), stack, 4) == trained(group(1), stack, 4)


def test_a_killed_process_is_named(stack: Streamed, tmp_path: Path) -> None:
    engine = stack.engine(MemoryxConfig((), tmp_path, 3))
    try:
        engine.put_state(stack.state)
        first, second, third = engine.started_processes
        assert len({first.pid, second.pid, third.pid}) == 3
        batch = [array[None] for array in stack.batches[0]]
        engine.dispatch(batch, 0, 1).wait()
        os.kill(second.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(MemoryxError, match=rf"MemoryX at 127\.0\.0\.1:{second.address[1]} has gone"):
            [engine.dispatch(batch, 0, 1).wait() for _ in range(3)]
        assert time.monotonic() - began < 30
        assert engine.missing_state
    finally:
        engine.free()
    for process in (first, third):
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_layers_are_shared_out(stack: Streamed) -> None:
    schedule, whole = stack.schedule, traffic(stack.schedule)
    parts = shards(schedule, 3)
    large = {number for number in schedule.state.values() if not is_small(schedule.values[number])}
    owned = [large & set(part.schedule.state.values()) for part in parts]
    assert len(parts) == 3
    assert set.union(*owned) == large
    assert sum(map(len, owned)) == len(large)
    weights = [sum(device_bytes((schedule.values[number],)) for number in numbers) for numbers in owned]
    assert max(weights) < 0.7 * sum(weights)
    for call, numbers in enumerate(whole.to_wafer):
        assert sorted(n for part in parts for n in part.traffic.to_wafer[call]) == sorted(numbers)
    assert shards(schedule, 3) == parts
    assert len(shards(schedule, 99)) <= len(schedule.layers)
    (alone,) = shards(schedule, 1)
    assert (alone.schedule, alone.traffic) == (schedule, whole)


def test_a_program_may_ask_for_fewer() -> None:
    addresses = parse_memoryx_addresses("a:1,b:2,[::1]:3")
    assert addresses == (("a", 1, False), ("b", 2, False), ("::1", 3, False))
    encrypted = parse_memoryx_addresses("a:1,127.0.0.1:2,[::1]:3", uses_tls=True)
    assert [address.encrypted for address in encrypted] == [True, False, False]
    assert MemoryxConfig(addresses).limit_servers(2).addresses == addresses[:2]
    assert MemoryxConfig(addresses).limit_servers(None).addresses == addresses
    assert [MemoryxConfig(servers=4).limit_servers(limit).servers for limit in (None, 2, 9)] == [4, 2, 4]
    with pytest.raises(BadOptionError, match=r"a:1 is given twice, expected a different process"):
        parse_memoryx_addresses("a:1,b:2,a:1")
    with pytest.raises(BadOptionError, match="expected HOST:PORT"):
        parse_memoryx_addresses("a:1,b")


def test_all_must_answer(stack: Streamed, three: tuple[tuple[str, int], ...]) -> None:
    engine = stack.engine(MemoryxConfig((three[0], MemoryxAddress("127.0.0.1", 9))))
    with pytest.raises(MemoryxError, match=r"no MemoryX answers at 127\.0\.0\.1:9"):
        engine.program()
    np.testing.assert_array_equal(engine.missing_state, list(stack.state))
