"""A model in layers, with its state in another process, trains to the numbers of the whole step."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cgc.layers.pieces import PIECE_ELEMENTS
from cs_system.errors import MemoryxError, StateMismatchError, WrongOrderError
from cs_system.memoryx import weights
from cs_system.memoryx.config import MemoryxAddress, MemoryxConfig
from cs_system.memoryx.engine import StreamedEngine

from .streamed_steps import Streamed, wide_network

Outputs = list[dict[str, np.ndarray]]


def train(engine: StreamedEngine, stack: Streamed, first: int = 0, last: int | None = None) -> Outputs:
    """Two steps are under way at a time, as in the loop of the system."""
    pending, outputs = [], []
    for batch in stack.batches[first:last]:
        pending.append(engine.dispatch([array[None] for array in batch], 0, 1))
        if len(pending) == 2:
            outputs.append(pending.pop(0).wait())
    return outputs + [step.wait() for step in pending]


def test_losses_and_weights_are_those_of_the_whole_step(engine: StreamedEngine, stack: Streamed) -> None:
    outputs = train(engine, stack)
    expected, expected_state = stack.whole
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(got["output_0"], [want[0]], rtol=1e-6)
    state = engine.fetch_state()
    assert state.keys() == expected_state.keys()
    assert state["state.global_step"] == len(stack.batches)
    assert state["state.global_step"].dtype == np.int64
    for name, value in expected_state.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_run_from_a_fetched_state_continues_bit_for_bit(
    engine: StreamedEngine, stack: Streamed, memoryx: tuple[str, int], tmp_path: Path
) -> None:
    whole, expected = train(engine, stack), engine.fetch_state()
    engine.put_state(stack.state)
    first = train(engine, stack, 0, 7)
    middle = engine.fetch_state()
    second = stack.engine(MemoryxConfig((memoryx,), tmp_path))
    try:
        second.put_state(middle)
        rest, state = train(second, stack, 7), second.fetch_state()
    finally:
        second.free()
    assert [o["output_0"].tobytes() for o in first + rest] == [o["output_0"].tobytes() for o in whole]
    assert {n: a.tobytes() for n, a in state.items()} == {n: a.tobytes() for n, a in expected.items()}


def test_numbers_in_files_are_those_that_travel(
    engine: StreamedEngine, own: StreamedEngine, stack: Streamed
) -> None:
    found = [(train(made, stack), made.fetch_state()) for made in (engine, own)]
    (travelled, state), (mapped, mapped_state) = found
    assert [o["output_0"].tobytes() for o in mapped] == [o["output_0"].tobytes() for o in travelled]
    assert {n: a.tobytes() for n, a in mapped_state.items()} == {n: a.tobytes() for n, a in state.items()}
    (transfer,) = own.transfers()
    assert 0 <= transfer.waited_s <= transfer.seconds


def test_updates_in_pieces_are_those_of_the_whole_step(memoryx: tuple[str, int], tmp_path: Path) -> None:
    wide = wide_network()
    (sweep, *_) = wide.schedule.sweeps()
    elements = [wide.schedule.values[number].shape for number in sweep.made[0]]
    assert sum(map(math.prod, elements)) > 2 * PIECE_ELEMENTS  # two pieces, and a part of a third
    engine = wide.engine(MemoryxConfig((memoryx,), tmp_path))
    try:
        runs = []
        for _ in range(2):
            engine.put_state(wide.state)
            runs.append((train(engine, wide), engine.fetch_state()))
    finally:
        engine.free()
    (outputs, state), (again, again_state) = runs
    expected, expected_state = wide.whole
    for got, second, want in zip(outputs, again, expected, strict=True):
        np.testing.assert_allclose(got["output_0"], [want[0]], rtol=1e-6)
        assert got["output_0"].tobytes() == second["output_0"].tobytes()
    for name, value in expected_state.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        assert state[name].tobytes() == again_state[name].tobytes()


def test_state_is_read_while_steps_continue(engine: StreamedEngine, stack: Streamed) -> None:
    train(engine, stack, 0, 7)
    expected = engine.fetch_state()
    kept = engine.snapshot()
    first, *others = expected
    read = kept.read([first])
    train(engine, stack, 7)  # all other tensors are read when they have long been replaced
    read |= kept.read(others)
    assert {n: a.tobytes() for n, a in read.items()} == {n: a.tobytes() for n, a in expected.items()}
    assert engine.fetch_state()["state.global_step"] == len(stack.batches)
    whole = stack.whole[1]
    for name, value in engine.fetch_state().items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_end_of_one_reading_is_not_that_of_the_next(engine: StreamedEngine, stack: Streamed) -> None:
    kept = engine.snapshot()
    for _ in range(300):
        kept.end()
        kept = engine.snapshot()
        assert kept.read(["state.global_step"])["state.global_step"] == 0
    assert kept.read([name for name in stack.state if name != "state.global_step"])


def test_a_state_is_read_once_and_not_after_another_one(engine: StreamedEngine, stack: Streamed) -> None:
    kept = engine.snapshot(["state.global_step"])
    assert kept.read()["state.global_step"] == 0
    with pytest.raises(MemoryxError, match="is not kept for a reader"):
        kept.read()
    assert engine.fetch_state().keys() == stack.state.keys()


def test_some_of_the_state(engine: StreamedEngine) -> None:
    assert list(engine.fetch_state(["state.global_step"])) == ["state.global_step"]
    with pytest.raises(StateMismatchError, match=r"'state\.model\.nothing' is not state of the program"):
        engine.fetch_state(["state.model.nothing"])


def test_steps_need_all_of_the_state(stack: Streamed, engine: StreamedEngine) -> None:
    engine.put_state({"state.global_step": stack.state["state.global_step"]})
    assert "state.global_step" not in engine.missing_state
    with pytest.raises(WrongOrderError, match="put_state comes before the first step"):
        train(engine, stack, 0, 1)
    with pytest.raises(WrongOrderError, match="none was put"):
        engine.fetch_state()


def test_a_killed_memoryx_is_named_and_the_state_is_lost(own: StreamedEngine, stack: Streamed) -> None:
    train(own, stack, 0, 2)
    (process,) = own.started_processes
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(MemoryxError, match=r"MemoryX at 127\.0\.0\.1:\d+ has gone .* resumes from its last"):
        train(own, stack, 2)
    assert time.monotonic() - began < 30
    assert own.missing_state


def test_a_hanging_memoryx_is_named_and_ended_after_a_timeout(
    stack: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "UNRESPONSIVE_S", 1.5)
    caplog.set_level("INFO")
    place = MemoryxConfig((), tmp_path, peer_timeout_s=4.0)
    engine = StreamedEngine(stack.compiled, stack.schedule, stack.data, place)
    try:
        engine.put_state(stack.state)
        assert engine.unresponsive() is None
        (process,) = engine.started_processes
        os.kill(process.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            training = pool.submit(train, engine, stack)
            while "has not answered" not in caplog.text:
                time.sleep(0.05)
            late = engine.unresponsive()
            os.kill(process.pid, signal.SIGCONT)
            for got, want in zip(training.result(), stack.whole[0], strict=True):
                np.testing.assert_allclose(got["output_0"], [want[0]], rtol=1e-6)
        expected = r"MemoryX at 127\.0\.0\.1:\d+ has not answered for \d s; the run ends after 4 s"
        assert late is not None
        assert re.fullmatch(expected, late)
        while "answers again" not in caplog.text:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(
            MemoryxError, match=r"MemoryX at \S+ has not answered for 4 s; .* last checkpoint"
        ):
            train(engine, stack)
    finally:
        engine.free()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_nothing_is_left_of_memoryx(own: StreamedEngine, stack: Streamed, tmp_path: Path) -> None:
    train(own, stack, 0, 1)
    assert not list(tmp_path.iterdir())  # the file of the state has no name
    (process,) = own.started_processes
    own.free()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_no_memoryx_at_the_address(stack: Streamed, tmp_path: Path) -> None:
    engine = stack.engine(MemoryxConfig((MemoryxAddress("127.0.0.1", 9),), tmp_path))
    with pytest.raises(
        MemoryxError, match=r"no MemoryX answers at 127\.0\.0\.1:9: .*cs_system memoryx serve"
    ):
        engine.program()
