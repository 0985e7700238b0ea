"""Snapshots: the state after a step, read while the next steps change it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from cs_system.memoryx.store import FileLayout, MappedTensors, Snapshot
from cs_toolkit.step import TensorSpec

SIZE = 1000
SPECS = {number: TensorSpec(str(number), "float32", (SIZE,)) for number in range(4)}


@pytest.fixture
def state(tmp_path: Path) -> MappedTensors:
    tensors = MappedTensors.in_directory(tmp_path, FileLayout(SPECS))
    for number in SPECS:
        tensors[number][...] = number
    return tensors


def change(state: MappedTensors, snapshot: Snapshot, step: int, *numbers: int) -> None:
    snapshot.before_change(step, numbers)
    for number in numbers:
        state[number][...] = 100 * step


def test_changed_tensors_are_read_as_they_were(state: MappedTensors) -> None:
    snapshot = Snapshot(state, 5, SPECS)
    change(state, snapshot, 5, 0)  # the update of this step is still under way
    first = snapshot.take(0)
    change(state, snapshot, 6, *SPECS)
    assert snapshot.copied_bytes == 3 * 4 * SIZE  # what has been read is not copied
    change(state, snapshot, 7, *SPECS)
    found = [first, *(snapshot.take(number) for number in (1, 2, 3))]
    np.testing.assert_array_equal(found, [[500] * SIZE, [1] * SIZE, [2] * SIZE, [3] * SIZE])
    assert snapshot.copied_bytes == 0
    assert snapshot.take(1) is None
    assert Snapshot(state, 7, [2]).take(3) is None


def test_an_update_waits_if_copies_exceed_the_limit(state: MappedTensors) -> None:
    snapshot = Snapshot(state, 0, SPECS, limit_bytes=2 * 4 * SIZE)
    change(state, snapshot, 1, 0, 1, 2)  # the first update may always copy
    waiting = threading.Thread(target=change, args=(state, snapshot, 1, 3))
    waiting.start()
    for number in (0, 1):
        waiting.join(0.1)
        assert waiting.is_alive()
        assert (state[3] == 3).all()
        snapshot.take(number)
    waiting.join()
    assert (state[3] == 100).all()
    kept = snapshot.take(3)
    assert kept is not None
    assert (kept == 3).all()


def test_a_reader_that_leaves_blocks_no_update(state: MappedTensors) -> None:
    snapshot = Snapshot(state, 0, SPECS, limit_bytes=1)
    change(state, snapshot, 1, 0)
    waiting = threading.Thread(target=change, args=(state, snapshot, 1, 1))
    waiting.start()
    snapshot.end()
    waiting.join()
    assert snapshot.copied_bytes == 0
    assert snapshot.take(2) is None
