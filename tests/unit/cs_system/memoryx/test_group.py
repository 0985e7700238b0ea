"""Several wafers that share a batch train to the numbers of one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from streamed_steps import Streamed

from cs_system.engine.base import Engine, make_engine
from cs_system.errors import ArtifactRefusedError, StateMismatchError, WaferLostError, WrongOrderError
from cs_system.memoryx.place import MemoryxPlace
from cs_system.swarmx.group import GroupEngine


@contextmanager
def group(stack: Streamed, place: MemoryxPlace, count: int) -> Iterator[GroupEngine]:
    engine = GroupEngine(stack.compiled, stack.schedule, stack.data, place, count)
    try:
        engine.put_state(stack.state)
        yield engine
    finally:
        engine.free()


def train(engine: Engine, stack: Streamed, last: int | None = None) -> list[np.ndarray]:
    pending = [engine.dispatch([array[None] for array in batch], 0, 1) for batch in stack.batches[:last]]
    return [step.wait()["output_0"] for step in pending]


def check_numbers(stack: Streamed, place: MemoryxPlace, count: int) -> None:
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
    check_numbers(stack, MemoryxPlace((memoryx,)), 2)


@pytest.mark.soak
def test_four_wafers(stack: Streamed, memoryx: tuple[str, int]) -> None:
    check_numbers(stack, MemoryxPlace((memoryx,)), 4)


def test_a_killed_wafer_is_named_and_nothing_is_left(stack: Streamed, tmp_path: Path) -> None:
    with group(stack, MemoryxPlace((), tmp_path), 2) as engine:
        train(engine, stack, 2)
        pids = [process.pid for process in engine.wafers]
        os.kill(pids[1], signal.SIGKILL)
        began_s = time.monotonic()
        with pytest.raises(WaferLostError, match=r"CS system 2 of 2 has gone; .* from its last checkpoint"):
            train(engine, stack)
        assert time.monotonic() - began_s < 10
        with pytest.raises(WrongOrderError, match="put_state comes before"):
            train(engine, stack, 1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_batch_that_cannot_be_shared_equally(stack: Streamed) -> None:
    with pytest.raises(ArtifactRefusedError, match="a batch of 4 samples cannot be shared equally by 3"):
        make_engine(stack.compiled, stack.data, 1, MemoryxPlace(), 3)
    with pytest.raises(ArtifactRefusedError, match="by 8 CS systems"):
        make_engine(stack.compiled, stack.data, 1, MemoryxPlace(), 8)
