"""The processes in which a MemoryX of several models computes their updates."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cs_system.errors import MemoryxError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.memoryx.engine import StreamedEngine
from tests.processes import is_running, wait_until
from tests.systems import descendants_of
from tests.unit.cs_system.memoryx.streamed_steps import Streamed, running_memoryx, stack_of_three


@pytest.fixture(scope="module")
def steps() -> Streamed:
    return stack_of_three()


@contextmanager
def loaded(steps: Streamed, place: MemoryxConfig) -> Iterator[StreamedEngine]:
    engine = steps.engine(place)
    try:
        engine.put_state(steps.state)
        yield engine
    finally:
        engine.free()


def train(engine: StreamedEngine, steps: Streamed, first: int, last: int) -> list[np.ndarray]:
    pending = [engine.dispatch([a[None] for a in batch], 0, 1) for batch in steps.batches[first:last]]
    return [step.wait()["output_0"] for step in pending]


def updates_of(pid: int) -> list[int]:
    """The processes of models of a MemoryX."""
    found = []
    for child in descendants_of(pid):
        try:
            name = Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue
        if name == "cs_memoryx":
            found.append(child)
    return found


@pytest.mark.parametrize("maps_files", [False, True])
def test_a_crash_ends_one_model_and_not_memoryx(steps: Streamed, tmp_path: Path, maps_files: bool) -> None:
    with running_memoryx(tmp_path) as (process, address):
        place = MemoryxConfig((address,), tmp_path, maps_files=maps_files)
        with loaded(steps, place) as one:
            (first,) = updates_of(process.pid)
            with loaded(steps, place) as other:
                expected = train(one, steps, 0, 2)
                assert [a.tolist() for a in train(other, steps, 0, 2)] == [a.tolist() for a in expected]
                os.kill(first, signal.SIGSEGV)
                with pytest.raises(
                    MemoryxError,
                    match=r"the process that updates the weights was ended by SIGSEGV \(.*\);",
                ):
                    train(one, steps, 2, 6)
                assert len(train(other, steps, 2, 6)) == 4
                assert process.poll() is None
        wait_until(lambda: not updates_of(process.pid))
        with loaded(steps, place) as again:
            assert [a.tolist() for a in train(again, steps, 0, 2)] == [a.tolist() for a in expected]


def test_nothing_outlives_a_memoryx_that_is_interrupted_while_its_processes_start(tmp_path: Path) -> None:
    with running_memoryx(tmp_path) as (process, _):
        started = descendants_of(process.pid)
        assert started  # they are still importing JAX
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert not [pid for pid in started if is_running(pid)]


def test_memoryx_imports_no_jax(steps: Streamed, tmp_path: Path) -> None:
    with running_memoryx(tmp_path) as (process, address), loaded(steps, MemoryxConfig((address,), tmp_path)):
        assert "jaxlib" not in Path(f"/proc/{process.pid}/maps").read_text()
