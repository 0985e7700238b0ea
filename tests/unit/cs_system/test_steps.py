"""The step loop between ring and engine, with a fake ring and a fake engine."""

import itertools
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

import cs_system.server.steps as steps_module
from cs_stream.errors import EndOfInputError, StallError, WorkerLostError
from cs_stream.order import InputPosition
from cs_stream.receiver import ReadySpan
from cs_system.server.steps import Progress, RateMeter, StepLoop


@dataclass
class Calls:
    """An engine whose outputs are the batches it was given."""

    dispatched: list[tuple[int, int]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    waited: int = 0

    step_s: float = 0.0
    blocks: bool = False

    def dispatch(self, chunk, offset, count):
        self.dispatched.append((offset, count))
        if self.blocks:
            time.sleep(self.step_s * count)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        return _Pending(self, chunk[0][offset : offset + count].copy())


@dataclass
class _Pending:
    calls: Calls
    values: np.ndarray

    @property
    def count(self):
        return len(self.values)

    def is_ready(self):
        return self.calls.blocks

    def wait(self):
        if not self.calls.blocks:
            time.sleep(self.calls.step_s * self.count)
        self.calls.under_way -= 1
        self.calls.waited += self.count
        return {"output_loss": self.values}


class ScriptedRing:
    """Gives the spans of a list: a number of batches, or an exception to raise once."""

    def __init__(self, calls, *script):
        self._calls = calls
        self._script = list(script)
        self._position = 0
        self.released = []

    def take(self, timeout_s):
        if not self._script:
            raise EndOfInputError("no more")
        item = self._script.pop(0)
        if isinstance(item, Exception):
            raise item
        first = self._position
        self._position += item
        rows = np.arange(first, first + item)
        places = tuple(InputPosition(1, int(row) + 1) for row in rows)
        return ReadySpan(0, (rows,), 0, item, first, places)

    def release(self, span):
        assert self._calls.waited >= span.first_position + span.count, "released while it was still read"
        self.released.append((span.first_position, span.count))


def run(steps, *script, first_step=0, calls=None, stop=None):
    calls = calls or Calls()
    ring = ScriptedRing(calls, *script)
    progress = Progress(first_step)
    emitted = []
    loop = StepLoop(calls, ring, progress)
    ended = loop.run(steps, emitted.append, stop or threading.Event())
    return ended, emitted, calls, ring, progress, loop


def values(emitted):
    return [int(v) for part in emitted for v in part.outputs["output_loss"]]


def test_every_batch_is_computed_once_in_order():
    ended, emitted, calls, ring, progress, _ = run(10, 4, 4, 2)
    assert not ended
    assert values(emitted) == list(range(10))
    assert [part.first_step for part in emitted] == list(np.cumsum([0, *[p.count for p in emitted]]))[:-1]
    assert ring.released == [(0, 4), (4, 4), (8, 2)]
    assert progress.step == 10
    assert calls.most_under_way == 2


@pytest.mark.parametrize(("first_step", "expected"), [(0, [2, 5, 8]), (4, [1, 4, 7])])
def test_outputs_of_every_third_step_are_emitted(first_step, expected):
    """The outputs are those of global steps that are multiples of three; batches count from 0."""
    calls = Calls()
    emitted = []
    loop = StepLoop(calls, ScriptedRing(calls, 4, 1, 4), Progress(first_step))
    loop.run(9, emitted.append, threading.Event(), {"output_loss": 3})
    found = [int(v) for part in emitted for v in part.outputs.get("output_loss", ())]
    assert found == expected
    assert sum(part.count for part in emitted) == 9


def test_a_span_longer_than_asked_for_is_kept_for_the_next_run():
    _, emitted, calls, ring, progress, loop = run(3, 8)
    assert values(emitted) == [0, 1, 2]
    assert progress.step == 3
    assert ring.released == []
    emitted.clear()
    assert not loop.run(5, emitted.append, threading.Event())
    assert values(emitted) == [3, 4, 5, 6, 7]
    assert calls.dispatched == [(0, 3), (3, 5)]
    assert ring.released == [(0, 8)]


def test_steps_are_counted_from_the_step_of_the_checkpoint():
    _, emitted, _, _, progress, _ = run(2, 2, first_step=30)
    assert emitted[0].first_step == 30
    assert progress.step == 32


def test_end_of_input_ends_the_steps():
    ended, emitted, *_ = run(10, 3, 2)
    assert ended
    assert values(emitted) == [0, 1, 2, 3, 4]


def test_a_stall_is_waited_out():
    _, emitted, *_ = run(
        3, StallError("none yet", 0), 1, StallError("none yet", 1), StallError("none yet", 1), 2
    )
    assert values(emitted) == [0, 1, 2]


def test_time_without_a_batch_is_reported_with_the_next_steps(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(steps_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    class SlowRing(ScriptedRing):
        def take(self, timeout_s):
            now_s[0] += 0.0 if not timeout_s else 2.0
            return super().take(timeout_s)

    calls, emitted = Calls(), []
    ring = SlowRing(calls, 2, StallError("none yet", 0), StallError("none yet", 0), 3)
    StepLoop(calls, ring, Progress(0)).run(5, emitted.append, threading.Event())
    assert values(emitted) == [0, 1, 2, 3, 4]
    # 2 s for the first span; while it is under way nobody waits; then two looks of 2 s each.
    assert sum(part.waited_s for part in emitted) == 6.0


def test_outputs_before_a_lost_worker_are_delivered():
    emitted = []
    calls = Calls()
    ring = ScriptedRing(calls, 2, 1, WorkerLostError("worker 1 is gone", 1))
    loop = StepLoop(calls, ring, Progress(0))
    with pytest.raises(WorkerLostError, match="worker 1 is gone"):
        loop.run(10, emitted.append, threading.Event())
    assert values(emitted) == [0, 1, 2]


def test_stop_ends_after_the_calls_in_flight():
    stop = threading.Event()
    calls = Calls()

    class StoppingRing(ScriptedRing):
        def take(self, timeout_s):
            span = super().take(timeout_s)
            if span.first_position >= 4:
                stop.set()
            return span

    ring = StoppingRing(calls, *[2] * 50)
    emitted = []
    assert not StepLoop(calls, ring, Progress(0)).run(100, emitted.append, stop)
    assert values(emitted) == [0, 1, 2, 3, 4, 5]


def test_small_calls_are_gathered_into_few_messages():
    _, emitted, calls, *_ = run(200, *[1] * 200)
    assert len(calls.dispatched) == 200
    assert values(emitted) == list(range(200))
    assert len(emitted) < 100


@pytest.mark.parametrize("blocks", [False, True], ids=["device works by itself", "device works in the call"])
def test_spans_carry_the_times_of_their_steps(blocks):
    calls = Calls(step_s=0.02, blocks=blocks)
    _, emitted, *_ = run(12, 2, 4, 2, 4, calls=calls)
    for part in emitted:
        assert part.ended_s - part.began_s >= 0.019 * part.count
    assert all(one.ended_s <= two.began_s for one, two in itertools.pairwise(emitted))


def test_rate_is_that_of_the_last_seconds():
    now = [0.0]
    meter = RateMeter(window_s=5.0, clock=lambda: now[0])
    assert meter.per_s() == 0.0
    meter.start(100)
    for second in range(1, 11):
        now[0] = float(second)
        meter.update(100 + 10 * second)
    assert meter.per_s() == pytest.approx(10.0)
    for second in range(11, 21):
        now[0] = float(second)
        meter.update(200 + 100 * (second - 10))
    assert meter.per_s() == pytest.approx(100.0)
    now[0] = 40.0
    assert meter.per_s() < 25.0


def test_the_rate_continues_over_the_ends_of_runs():
    now = [0.0]
    meter = RateMeter(window_s=5.0, clock=lambda: now[0])
    meter.start(0)
    now[0] = 1.0
    meter.update(10)
    now[0] = 3.0  # a checkpoint
    meter.start(10)
    assert meter.per_s() == pytest.approx(10.0)
    now[0] = 4.0
    meter.update(20)
    assert meter.per_s() == pytest.approx(10.0)
    now[0] = 20.0  # a long pause
    meter.start(20)
    assert meter.per_s() == 0.0
    now[0] = 21.0
    meter.update(23)
    meter.start(0)  # another program
    assert meter.per_s() == 0.0
