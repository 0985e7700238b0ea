"""The step loop: take ready batches, have the engine compute them, and pass the outputs on.

It runs in the thread of the device. Two calls are in flight at a time: while the device computes one, the
outputs of the previous one are copied and the next one is queued, so the device never waits for Python.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cs_stream.errors import EndOfInputError, StallError
from cs_stream.order import START, InputPosition
from cs_stream.receiver import BatchRing, ReadySpan
from cs_toolkit.spans import SpanRing

if TYPE_CHECKING:
    from cs_system.engine.base import Engine, PendingSteps

# Calls in flight at a time.
_DEPTH = 2
# Outputs of several calls are sent together, so that fast steps do not cost a message each.
_FLUSH_INTERVAL_S = 0.02
_FLUSH_BYTES = 1 << 20
# How often a loop that is waiting for input checks whether it should stop.
_POLL_S = 0.1
# An input function that yields nothing for this long is considered hung.
INPUT_TIMEOUT_S = 1800.0
WINDOW_S = 5.0
_SHORT_WAIT_S = 20e-6  # shorter waits are not worth a span


@dataclass(frozen=True)
class StepValues:
    """Outputs of consecutive steps.

    Attributes:
        first_step: Global step before the first of them.
        count: Number of steps.
        outputs: By name, stacked: shape (count, *shape). An output that was requested for some steps only has
            the values of these, and is missing if there are none.
        began_s: Monotonic time at which the device began the first step.
        ended_s: Monotonic time at which it finished the last one.
        waited_s: How long it was idle before these steps for lack of a batch.
        position: Place in the input after the last step.
        shards: With the order first-ready, the shards of the steps (`cs_stream.order.pack_schedule`).
    """

    first_step: int
    count: int
    outputs: dict[str, np.ndarray]
    began_s: float = 0.0
    ended_s: float = 0.0
    waited_s: float = 0.0
    position: InputPosition = START
    shards: bytes = b""


def merge_values(parts: Sequence[StepValues]) -> StepValues:
    """Merge the outputs of consecutive spans of steps."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.outputs)
    return StepValues(
        parts[0].first_step,
        sum(part.count for part in parts),
        {name: np.concatenate([p.outputs[name] for p in parts if name in p.outputs]) for name in names},
        parts[0].began_s,
        parts[-1].ended_s,
        sum(part.waited_s for part in parts),
        parts[-1].position,
        b"".join(part.shards for part in parts),
    )


def select_due(
    outputs: dict[str, np.ndarray], first_step: int, count: int, every: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Drop outputs that are not due: those in `every` only for steps that are multiples of their interval."""
    found = dict(outputs)
    for name in every.keys() & outputs.keys():
        skipped = every[name] - 1 - first_step % every[name]
        if skipped < count:
            found[name] = outputs[name][
                skipped :: every[name]
            ].copy()  # a view would keep the values of all steps alive
        else:
            del found[name]
    return found


@dataclass
class _Call:
    """A call to the device that is in flight.

    Attributes:
        pending: Its steps.
        span: Released when the call has ended; None if later calls read it too.
        dispatched_s: Monotonic time just before the call.
        waited_s: Time without a batch before the call.
        position: Place in the input after it.
        shards: Shards of its steps, as in `StepValues`.
        ready_s: Monotonic time at which the device was first seen to have finished it.
    """

    pending: PendingSteps
    span: ReadySpan | None
    dispatched_s: float
    waited_s: float
    position: InputPosition
    shards: bytes
    ready_s: float | None = None

    def poll(self) -> None:
        """Record the time if the device has finished the call."""
        if self.ready_s is None and self.pending.is_ready():
            self.ready_s = time.monotonic()


class Progress:
    """The progress of a run; written by the step loop, read by any thread.

    Attributes:
        step: Number of completed steps.
        waiting_since: Monotonic time since which the device has been idle for lack of batches, or None.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.waiting_since: float | None = None
        self.rate = RateMeter()


class StepLoop:
    """Runs steps in the order of the input.

    Args:
        device: The engine, with a state.
        ring: The input.
        progress: Updated after every finished call.
        input_timeout_s: How long the device waits for a batch before the input counts as failed.
        spans: Where the times of the device are recorded.
    """

    def __init__(
        self,
        device: Engine,
        ring: BatchRing,
        progress: Progress,
        input_timeout_s: float = INPUT_TIMEOUT_S,
        spans: SpanRing | None = None,
    ) -> None:
        self._spans = spans or SpanRing(0)
        self._device = device
        self._ring = ring
        self._progress = progress
        self._input_timeout_s = input_timeout_s
        self._ended_s = 0.0
        self._waited_s = 0.0
        self._every: Mapping[str, int] = {}
        # The span whose batches are being consumed, and how many of them have been dispatched.
        self._span: ReadySpan | None = None
        self._used = 0
        self._in_flight: deque[_Call] = deque()

    def run(
        self,
        steps: int,
        emit: Callable[[StepValues], None],
        stop: threading.Event,
        every: Mapping[str, int] | None = None,
    ) -> bool:
        """Compute up to `steps` steps.

        Args:
            steps: Number of steps.
            emit: Called with the outputs of all steps in order, of several steps at a time.
            stop: Set by another thread to end the loop after the calls in flight.
            every: By output name, an interval: the output is emitted only for global steps that are multiples
                of it.

        Returns:
            True if the input has ended, in which case fewer steps may have run.

        Raises:
            StreamingError: the input failed; the outputs of all steps before have been emitted.
            CsSystemError: the device failed.
        """
        batcher = _Batcher(emit)
        self._every = every or {}
        self._progress.rate.start(self._progress.step)
        try:
            return self._run(steps, batcher, stop)
        finally:
            self._progress.waiting_since = None
            self._in_flight.clear()

    def _run(self, left: int, batcher: _Batcher, stop: threading.Event) -> bool:
        ended = False
        failure: Exception | None = None
        while left or self._in_flight:
            if stop.is_set() or ended or failure is not None:
                # Calls in flight are still finished.
                left = 0
            if left and len(self._in_flight) < _DEPTH:
                try:
                    ready = self._have_batches(batcher)
                except EndOfInputError:
                    ended = True
                    continue
                # The outputs of steps that were computed before the input failed must still reach the chief.
                except Exception as error:
                    failure = error
                    continue
                if ready:
                    left -= self._dispatch(left)
                    continue
            if self._in_flight:
                batcher.add(self._finish_oldest())
        batcher.flush()
        if failure is not None:
            raise failure
        return ended

    def _have_batches(self, batcher: _Batcher) -> bool:
        """Return True if there is a span with unused batches; wait for one only while the device is idle.

        Raises:
            StallError: the device has waited for longer than the time limit.
        """
        if self._span is not None:
            return True
        idle_since_s = None if self._in_flight else time.monotonic()
        try:
            self._span = self._ring.take(0.0 if self._in_flight else batcher.due_in_s(_POLL_S))
        except StallError as error:
            if not self._in_flight:
                now_s = time.monotonic()
                if self._progress.waiting_since is None:
                    self._progress.waiting_since = now_s
                waited_s = now_s - self._progress.waiting_since
                if waited_s > self._input_timeout_s:
                    raise StallError(self._ring.stall_text(waited_s), error.worker) from None
                batcher.flush()
            return False
        finally:
            if idle_since_s is not None:
                self._waited_s += time.monotonic() - idle_since_s
        self._used = 0
        self._progress.waiting_since = None
        return True

    def _dispatch(self, limit: int) -> int:
        span = self._span
        assert span is not None
        count = min(limit, span.count - self._used)
        dispatched_s = time.monotonic()
        pending = self._device.dispatch(span.chunk_arrays, span.offset + self._used, count)
        shards = span.shards[2 * self._used : 2 * (self._used + count)]
        self._used += count
        finished = self._used == span.count
        waited_s, self._waited_s = self._waited_s, 0.0
        position = span.places[self._used - 1]
        call = _Call(pending, span if finished else None, dispatched_s, waited_s, position, shards)
        self._in_flight.append(call)
        # A call may have finished while the next one was made: on a CPU, dispatching can do all of its work.
        for call in self._in_flight:
            call.poll()
        if finished:
            self._span = None
        return count

    def _finish_oldest(self) -> StepValues:
        call = self._in_flight.popleft()
        pending, span = call.pending, call.span
        outputs = pending.wait()
        began_s = max(call.dispatched_s, self._ended_s)
        if call.waited_s > _SHORT_WAIT_S:
            wait_s = max(call.dispatched_s - call.waited_s, self._ended_s)
            self._spans.add("device", "wait for a batch", wait_s, call.dispatched_s)
        self._ended_s = call.ready_s or time.monotonic()
        last = ("last step", self._progress.step + pending.count)
        self._spans.add("device", "compute", began_s, max(began_s, self._ended_s), last)
        # Not before `wait` has returned: until then the device reads the batches in place.
        if span is not None:
            self._ring.release(span)
        # Count steps rather than positions of the input, which have holes when a worker ends early.
        first_step = self._progress.step
        self._progress.step += pending.count
        self._progress.rate.update(self._progress.step)
        wanted = select_due(outputs, first_step, pending.count, self._every)
        return StepValues(
            first_step,
            pending.count,
            wanted,
            began_s,
            self._ended_s,
            call.waited_s,
            call.position,
            call.shards,
        )


class _Batcher:
    """Holds outputs back for a moment so that many small calls become one message."""

    def __init__(self, emit: Callable[[StepValues], None]) -> None:
        self._emit = emit
        self._parts: list[StepValues] = []
        self._bytes = 0
        self._flushed_at = 0.0

    def add(self, values: StepValues) -> None:
        self._parts.append(values)
        self._bytes += sum(array.nbytes for array in values.outputs.values())
        if self._bytes >= _FLUSH_BYTES or time.monotonic() - self._flushed_at >= _FLUSH_INTERVAL_S:
            self.flush()

    def due_in_s(self, limit_s: float) -> float:
        """Return the time, at most `limit_s`, before something has to be sent."""
        if not self._parts:
            return limit_s
        return min(limit_s, max(0.0, self._flushed_at + _FLUSH_INTERVAL_S - time.monotonic()))

    def flush(self) -> None:
        if self._parts:
            parts, self._parts, self._bytes = self._parts, [], 0
            self._emit(merge_values(parts))
            self._flushed_at = time.monotonic()


class RateMeter:
    """Steps per second over a sliding window; written by one thread, read by any.

    Args:
        window_s: Length of the window.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()

    def start(self, steps: int) -> None:
        """Start counting at `steps`, so that a pause before does not lower the rate."""
        now = self._clock()
        pause_s = now - self._marks[-1][0] if self._marks else self._window_s
        if pause_s < self._window_s and self._marks[-1][1] == steps:
            # Runs end at each checkpoint: the window has the steps before it, without the time in between.
            self._marks = deque((mark_s + pause_s, done) for mark_s, done in self._marks)
        else:
            self._marks = deque([(now, steps)])

    def update(self, steps: int) -> None:
        """Record the number of steps done so far."""
        now = self._clock()
        self._marks.append((now, steps))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window_s:
            self._marks.popleft()

    def per_s(self) -> float:
        """Return the steps per second, 0 before the first update."""
        marks = list(self._marks)
        if len(marks) < 2 or marks[-1][1] == marks[0][1]:
            return 0.0
        return (marks[-1][1] - marks[0][1]) / max(self._clock() - marks[0][0], 1e-9)
