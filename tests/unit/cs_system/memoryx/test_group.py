"""Several wafers that share a batch train to the numbers of one."""

from __future__ import annotations

import numpy as np
import pytest
from groups import group, train
from streamed_steps import Streamed

from cs_system.engine.base import make_engine
from cs_system.errors import ArtifactRefusedError, StateMismatchError
from cs_system.memoryx.place import MemoryxPlace


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


def test_a_batch_that_cannot_be_shared_equally(stack: Streamed) -> None:
    with pytest.raises(ArtifactRefusedError, match="a batch of 4 samples cannot be shared equally by 3"):
        make_engine(stack.compiled, stack.data, 1, MemoryxPlace(), 3)
    with pytest.raises(ArtifactRefusedError, match="by 8 CS systems"):
        make_engine(stack.compiled, stack.data, 1, MemoryxPlace(), 8)
