"""Engines that compute a batch in micro-batches: the numbers are those of the whole step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cs_system.engine.micro_batches import share
from cs_system.errors import ArtifactRefusedError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.swarmx.group import GroupEngine

from .groups import train
from .streamed_steps import Streamed, stack_of_three
from .test_group import check_numbers


@pytest.fixture(scope="module")
def halves() -> Streamed:
    """Batches of 4 samples in 2 micro-batches; dropout, clipping and a tied table."""
    return stack_of_three(micro_batches=2)


@pytest.fixture(scope="module")
def single() -> Streamed:
    return stack_of_three(micro_batches=4)


@pytest.mark.parametrize("name", ["halves", "single"])
def test_one_wafer(
    name: str, request: pytest.FixtureRequest, memoryx: tuple[str, int], tmp_path: Path
) -> None:
    stack: Streamed = request.getfixturevalue(name)
    expected, expected_state = stack.whole
    engine = stack.engine(MemoryxConfig((memoryx,), tmp_path))
    try:
        engine.put_state(stack.state)
        losses, state = train(engine, stack), engine.fetch_state()
        engine.put_state(stack.state)
        again = train(engine, stack)
    finally:
        engine.free()
    np.testing.assert_allclose(np.concatenate(losses), [outputs[0] for outputs in expected], rtol=1e-5)
    for key, value in expected_state.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    assert [loss.tobytes() for loss in again] == [loss.tobytes() for loss in losses]


def test_two_processes_of_memoryx_add_up_their_own_gradients(halves: Streamed, tmp_path: Path) -> None:
    found = []
    for servers in (1, 2):
        engine = halves.engine(MemoryxConfig((), tmp_path, servers))
        try:
            engine.put_state(halves.state)
            losses = train(engine, halves)
            found.append([array.tobytes() for array in (*losses, *engine.fetch_state().values())])
        finally:
            engine.free()
    assert found[0] == found[1]


# Two systems with a program of TensorFlow are in tests/clients/weight_streaming/test_micro_batches.py.
@pytest.mark.soak
def test_two_wafers_share_each_micro_batch(halves: Streamed, memoryx: tuple[str, int]) -> None:
    check_numbers(halves, MemoryxConfig((memoryx,)), 2)


def test_a_wafer_has_its_share_of_each_micro_batch() -> None:
    batch = np.arange(24).reshape(12, 2)
    shares = [share(batch, 2, 3, rank) for rank in range(3)]
    assert [list(rows[:, 0] // 2) for rows in shares] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


def test_micro_batches_that_cannot_be_shared_are_refused(single: Streamed) -> None:
    with pytest.raises(ArtifactRefusedError, match="each of the 4 micro-batches of a batch of 4 samples"):
        GroupEngine(single.compiled, single.schedule, single.data, MemoryxConfig(), 2)
