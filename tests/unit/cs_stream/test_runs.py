"""Whole runs over loopback, without faults."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from cs_stream.batches import BatchLayout, Slot
from cs_stream.errors import (
    BatchShapeError,
    EndOfInput,
    RingClosedError,
    StallError,
    StreamingError,
    WorkerFailedError,
    WorkerLostError,
)
from cs_stream.frames import FrameType
from cs_stream.link import ServerLink
from cs_stream.messages import ErrorCode, Welcome
from cs_stream.protocol import WorkerState
from cs_stream.receiver import BatchRing, RunStats, WorkerPhase
from cs_stream.session import Session
from tests.loopback import SMALL, Loopback, numbered_batch, numbered_input, take_numbered
from tests.processes import wait_until


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("checksum", [True, False])
def test_every_batch_arrives_once_in_order(num_workers: int, checksum: bool) -> None:
    with Loopback(num_workers, checksum=checksum) as run:
        senders = [run.start_sender(worker, count=9) for worker in range(num_workers)]
        assert take_numbered(run.ring) == list(range(9 * num_workers))
        run.ring.close()
        for sender in senders:
            summary = sender.result(timeout=60)
            assert (summary.batches, summary.end, summary.reconnects) == (9, "bye", 0)
            assert summary.bytes == 9 * SMALL.nbytes


def test_a_sender_that_computes_no_digests_is_taken() -> None:
    with Loopback() as run:
        sender = run.start_sender(0, count=5, checksum=False)
        assert take_numbered(run.ring) == [0, 1, 2, 3, 4]
        run.ring.close()
        assert sender.result(timeout=60).batches == 5


def test_fields_of_every_kind_arrive() -> None:
    layout = BatchLayout.of(
        [("a", "bool", (3,)), ("b", "int64", ()), ("c", "float16", (2, 2, 2)), ("d", "uint8", (64,))]
        + [(f"many{index}", "int8", (index + 1,)) for index in range(600)]
    )
    with Loopback(layout=layout) as run:
        run.start_sender(0, count=4)
        assert take_numbered(run.ring) == [0, 1, 2, 3]


def test_finite_inputs_of_unequal_length_give_every_batch_once() -> None:
    lengths = [5, 0, 11]
    with Loopback(num_workers=3) as run:
        senders = [run.start_sender(worker, count) for worker, count in enumerate(lengths)]
        expected = sorted(worker + 3 * seq for worker, length in enumerate(lengths) for seq in range(length))
        assert take_numbered(run.ring) == expected
        run.ring.close()
        assert [sender.result(timeout=60).batches for sender in senders] == lengths


@pytest.mark.parametrize("first_position", [1, 7, 8, 19])
def test_a_run_resumed_anywhere_continues_the_order(first_position: int) -> None:
    with Loopback(num_workers=3, first_position=first_position) as run:
        for worker in range(3):
            run.start_sender(worker, count=8)
        assert take_numbered(run.ring) == list(range(first_position, 24))


def test_consecutive_positions_are_one_stacked_view_of_the_ring() -> None:
    with Loopback(num_workers=2, chunk_batches=4, chunks=2) as run:
        for worker in range(2):
            run.start_sender(worker, count=20)
        run.ring.wait_primed(timeout_s=10)
        addresses = set()
        position = 0
        while position < 40:
            span = run.ring.take(timeout_s=10)
            assert span.first_position == position
            assert (span.chunk_index, span.offset) == divmod(position % 8, 4)
            assert position + span.count <= (position // 4 + 1) * 4
            image, label = span.chunk_arrays
            assert (image.shape, label.shape) == ((4, 4, 3), (4, 4))
            assert np.shares_memory(span.arrays[0], image)
            assert image.ctypes.data % 64 == label.ctypes.data % 64 == 0
            addresses.add((span.chunk_index, image.ctypes.data))
            position += span.count
            run.ring.release(span)
        assert len(addresses) == 2


def test_take_gives_no_more_than_asked_for() -> None:
    with Loopback() as run:
        run.start_sender(0, count=4)
        counts = []
        for limit in (1, 2, 5):
            span = run.ring.take(timeout_s=10, limit=limit)
            assert span.count <= limit
            counts.append(span.count)
            run.ring.release(span)
        assert run.ring.position == sum(counts)


def test_a_slow_consumer_holds_the_workers_at_the_size_of_the_ring() -> None:
    """The input is asked for one batch more than there are slots, and for the next when one is released."""
    asked: list[int] = []
    asked_for = [threading.Event() for _ in range(12)]

    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        for seq in range(skip, 12):
            asked.append(seq)
            asked_for[seq].set()
            yield numbered_batch(SMALL, seq)

    with Loopback(chunk_batches=1, chunks=4) as run:
        run.start(run.sender(0), make_batches)
        assert asked_for[4].wait(timeout=60)
        for seq in range(7):
            stats = run.ring.stats()
            assert stats.workers[0].received <= stats.released + 4
            assert max(asked) <= seq + 4
            span = run.ring.take(timeout_s=10)
            assert not asked_for[seq + 5].is_set()
            run.ring.release(span)
            assert asked_for[seq + 5].wait(timeout=60)
        # All slots fill up again, and from then on the worker waits.
        while run.ring.stats().workers[0].credit_wait_s == 0:
            assert run.ring.stats().workers[0].received <= 11


def test_held_spans_are_not_overwritten() -> None:
    with Loopback(chunk_batches=2, chunks=2) as run:
        run.start_sender(0, count=8)
        first = run.ring.take(timeout_s=10, limit=1)
        kept = [array.copy() for array in first.arrays]
        others = [run.ring.take(timeout_s=10, limit=1) for _ in range(3)]
        for span in others:
            run.ring.release(span)
        with pytest.raises(
            StallError, match=r"position 4 within 0.05 s: worker 0 .* is connected, 4 batches"
        ):
            run.ring.take(timeout_s=0.05)
        for array, copy in zip(first.arrays, kept, strict=True):
            np.testing.assert_array_equal(array, copy)
        run.ring.release(first)
        assert take_numbered(run.ring) == [4, 5, 6, 7]
        with pytest.raises(ValueError, match="release of positions 0 to 0"):
            run.ring.release(first)


def test_batches_that_have_arrived_are_committed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[int]] = []
    commit = BatchRing.commit

    def record(ring: BatchRing, link: ServerLink, seqs: Sequence[int]) -> None:
        groups.append(list(seqs))
        commit(ring, link, seqs)

    monkeypatch.setattr(BatchRing, "commit", record)
    with Loopback() as run, run.raw_worker(0) as worker:
        worker.join()
        frames = b"".join(worker.batch_frame(seq) for seq in range(6))
        worker.send(frames + worker.control_frame(FrameType.EOS, seq=6))
        assert take_numbered(run.ring) == list(range(6))
    assert [seq for group in groups for seq in group] == list(range(6))
    # The window has 8 batches; half of it is committed at the latest.
    assert groups[0] == [0, 1, 2, 3]


def test_a_batch_before_a_damaged_one_is_committed() -> None:
    with Loopback() as run, run.raw_worker(0) as worker:
        worker.join()
        damaged = bytearray(worker.batch_frame(1))
        damaged[-100] ^= 1
        worker.send(worker.batch_frame(0) + bytes(damaged))
        assert worker.read_failure().code == ErrorCode.CHECKSUM
        assert take_numbered(run.ring, count=1) == [0]
        assert run.ring.stats().workers[0].received == 1


def test_a_stall_names_the_worker_that_is_waited_for() -> None:
    with Loopback(num_workers=2) as run:
        run.start_sender(0, count=3)
        assert take_numbered(run.ring, count=1) == [0]
        with pytest.raises(
            StallError, match=r"no batch for position 1 within 0\.2 s: worker 1 is absent"
        ) as caught:
            run.ring.take(timeout_s=0.2)
        assert caught.value.worker == 1
        assert run.ring.stats().workers[1].consumer_wait_s > 0


def test_priming_waits_for_the_first_batch_of_every_worker() -> None:
    seen: list[RunStats] = []
    with Loopback(num_workers=2) as run:
        run.start_sender(0, count=1)
        wait_until(lambda: run.ring.stats().workers[0].received)
        with pytest.raises(StallError, match=r"not ready within 0\.05 s: worker 1 is absent") as caught:
            run.ring.wait_primed(timeout_s=0.05)
        assert caught.value.worker == 1
        run.start_sender(1, count=1)
        run.ring.wait_primed(timeout_s=10, on_progress=seen.append)
        assert seen[-1].primed
        assert [worker.received for worker in seen[-1].workers] == [1, 1]


def test_the_end_of_a_finite_input_is_an_event_and_bye_follows() -> None:
    with Loopback() as run:
        sender = run.start_sender(0, count=1)
        assert take_numbered(run.ring) == [0]
        with pytest.raises(EndOfInput):
            run.ring.take(timeout_s=1)
        assert run.ring.stats().workers[0].phase is WorkerPhase.ENDED
        assert not sender.done()
        run.ring.close()
        assert sender.result(timeout=60).end == "bye"


def test_a_run_with_enough_batches_says_bye_in_the_middle() -> None:
    with Loopback(num_workers=2) as run:
        senders = [run.start_sender(worker, count=10**6) for worker in range(2)]
        assert take_numbered(run.ring, count=20) == list(range(20))
        run.ring.close()
        assert [sender.result(timeout=60).end for sender in senders] == ["bye", "bye"]
        assert not [thread.name for thread in threading.enumerate() if "streaming-link" in thread.name]


def test_a_stopped_run_gives_the_workers_the_reason() -> None:
    with Loopback() as run:
        sender = run.start_sender(0, count=10**6)
        take_numbered(run.ring, count=3)
        run.ring.close("loss is NaN at step 3")
        run.ring.close("again")
        summary = sender.result(timeout=60)
        assert (summary.end, summary.stopped_reason) == ("stopped", "loss is NaN at step 3")
        with pytest.raises(RingClosedError, match="the input of job 'job' is closed: loss is NaN at step 3"):
            run.ring.take()


def test_a_run_may_end_among_batches_that_have_come_together() -> None:
    with Loopback() as run:
        slot_for = run.ring.slot_for

        def end_at_the_second(link: ServerLink, seq: int) -> Slot:
            if seq == 0:
                wait_until(lambda: link._connection.has_received(4 * SMALL.nbytes))
            elif seq == 1:
                link.queue_end(None)
            return slot_for(link, seq)

        run.ring.slot_for = end_at_the_second  # type: ignore[method-assign]
        sender = run.start_sender(0, count=10**6)
        assert sender.result(timeout=60).end == "bye"
        wait_until(lambda: not any("streaming-link" in thread.name for thread in threading.enumerate()))


class _Lingering:
    """The lock of a session; a thread that leaves it closed and without an end waits there for a batch."""

    def __init__(self, session: Session) -> None:
        self._session, self._lock = session, threading.Lock()
        self.has_sent = threading.Event()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        is_closed = self._session._core.state is WorkerState.CLOSED
        is_unexplained = is_closed and self._session.end is None
        self._lock.release()
        if is_unexplained:
            self.has_sent.wait(30)


def test_a_batch_that_is_ready_when_the_run_ends_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    shake_hands, send_batch = Session.shake_hands, Session.send_batch
    is_ready = threading.Event()

    def shake_hands_lingering(session: Session, limit_s: float) -> Welcome:
        session._lock = _Lingering(session)  # type: ignore[assignment]
        return shake_hands(session, limit_s)

    def send_late(session: Session, fields: Sequence[memoryview], header: bytes | None) -> None:
        is_ready.set()
        wait_until(lambda: session._core.state is WorkerState.CLOSED)
        try:
            send_batch(session, fields, header)
        finally:
            session._lock.has_sent.set()  # type: ignore[attr-defined]

    monkeypatch.setattr(Session, "shake_hands", shake_hands_lingering)
    monkeypatch.setattr(Session, "send_batch", send_late)
    with Loopback() as run:
        sender = run.start_sender(0, count=1)
        assert is_ready.wait(60)
        run.ring.close()
        assert sender.result(timeout=60).end == "bye"


def test_closing_wakes_a_consumer() -> None:
    with Loopback() as run:
        closer = threading.Timer(0.05, run.ring.close)
        closer.start()
        with pytest.raises(RingClosedError, match="closed: the run is over"):
            run.ring.take()
        closer.join()


def test_closing_the_receiver_stops_its_runs_and_ends_its_threads() -> None:
    with Loopback() as run:
        sender = run.start_sender(0, count=10**6)
        take_numbered(run.ring, count=1)
        run.receiver.close()
        assert sender.result(timeout=60).stopped_reason == "the CS system is shutting down"
        assert not [
            t.name for t in threading.enumerate() if t.name.startswith(("streaming-link", "streaming-acc"))
        ]
        with pytest.raises(StreamingError, match="the data port is closed"):
            run.receiver.open_run(run.spec)


def test_bye_reaches_a_worker_inside_its_input_function_without_delay() -> None:
    inside, leave = threading.Event(), threading.Event()

    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        yield numbered_batch(SMALL, 0)
        inside.set()
        assert leave.wait(timeout=30)
        yield numbered_batch(SMALL, 1)

    with Loopback() as run:
        sender = run.start(run.sender(0), make_batches)
        assert take_numbered(run.ring, count=1) == [0]
        assert inside.wait(timeout=60)
        # Returns once the worker has hung up, although the worker's program is still busy.
        run.ring.close()
        assert not sender.done()
        leave.set()
        assert sender.result(timeout=60).end == "bye"


def test_an_input_that_raises_after_the_end_of_the_run_is_no_failure() -> None:
    inside, leave = threading.Event(), threading.Event()

    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        yield numbered_batch(SMALL, 0)
        inside.set()
        assert leave.wait(timeout=30)
        raise RuntimeError("the data server has gone")

    with Loopback() as run:
        sender = run.start(run.sender(0), make_batches)
        assert take_numbered(run.ring, count=1) == [0]
        assert inside.wait(timeout=60)
        run.ring.close()
        leave.set()
        assert sender.result(timeout=60).end == "bye"


def test_an_error_of_the_input_goes_unchanged_to_both_sides() -> None:
    error = KeyError("record 17")

    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        yield numbered_batch(SMALL, 0)
        raise error

    with Loopback() as run:
        sender = run.start(run.sender(0), make_batches)
        assert take_numbered(run.ring, count=1) == [0]
        with pytest.raises(WorkerFailedError) as caught:
            run.ring.take(timeout_s=10)
        assert str(caught.value).endswith("): input failed: KeyError: 'record 17'")
        assert "in make_batches" in caught.value.detail
        assert caught.value.worker == 0
        assert sender.exception(timeout=60) is error


def test_an_input_that_cannot_be_built_fails_the_run() -> None:
    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        raise FileNotFoundError("no such directory: data")

    with Loopback() as run:
        sender = run.start(run.sender(0), make_batches)
        with pytest.raises(WorkerFailedError, match="FileNotFoundError: no such directory: data"):
            run.ring.wait_primed(timeout_s=10)
        assert isinstance(sender.exception(timeout=60), FileNotFoundError)


def test_a_short_last_batch_ends_the_run_with_the_cure() -> None:
    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        image, label = numbered_batch(SMALL, 0)
        yield image, label
        yield image[:3], label[:3]

    with Loopback() as run:
        sender = run.start(run.sender(0), make_batches)
        assert take_numbered(run.ring, count=1) == [0]
        with pytest.raises(WorkerFailedError, match="drop_remainder=True"):
            run.ring.take(timeout_s=10)
        with pytest.raises(
            BatchShapeError, match=r"batch 1 of worker 0: field 'image' has shape \(3, 3\), expected \(4, 3\)"
        ):
            sender.result(timeout=60)


def test_a_generator_is_closed_when_the_run_ends() -> None:
    closed = threading.Event()

    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        try:
            for seq in range(skip, 10**6):
                yield numbered_batch(SMALL, seq)
        finally:
            closed.set()

    with Loopback() as run:
        sender = run.start(run.sender(0), make_batches)
        take_numbered(run.ring, count=2)
        run.ring.close()
        sender.result(timeout=60)
        assert closed.is_set()


def test_a_sender_can_be_stopped_from_its_own_process() -> None:
    with Loopback(reconnect_s=0.05) as run:
        sender = run.sender(0)
        future = run.start(sender, numbered_input(SMALL, 0, 1, 10**6))
        take_numbered(run.ring, count=2)
        sender.stop()
        summary = future.result(timeout=60)
        assert (summary.end, summary.stopped_reason) == ("stopped", "stopped by this process")
        with pytest.raises(WorkerLostError):
            take_numbered(run.ring)


def test_a_sender_can_be_stopped_while_it_waits_for_a_run() -> None:
    with Loopback() as run:
        address = run.receiver.address
        run.receiver.close()
        sender = run.sender(0)
        future = run.start(sender, numbered_input(SMALL, 0, 1, 1))
        assert address
        sender.stop()
        assert future.result(timeout=60).end == "stopped"


def test_two_runs_of_different_jobs_share_the_port() -> None:
    with Loopback() as run:
        other = run.receiver.open_run(
            type(run.spec)("other", "its secret", 1, SMALL, "digest", chunk_batches=2, chunks=2)
        )
        run.start_sender(0, count=3)
        assert take_numbered(run.ring) == [0, 1, 2]
        stats = other.stats()
        assert stats.workers[0].phase is WorkerPhase.ABSENT
        other.close()


def test_statistics_describe_the_work_of_a_worker() -> None:
    with Loopback(num_workers=2) as run:
        for worker in range(2):
            run.start_sender(worker, count=6)
        take_numbered(run.ring)
        stats = run.ring.stats()
        assert (stats.position // 2, stats.slots) == (6, 8)
        for entry in stats.workers:
            assert entry.phase is WorkerPhase.ENDED
            assert (entry.connects, entry.received, entry.batches) == (1, 6, 6)
            assert entry.size_bytes == 6 * SMALL.nbytes
            assert entry.pid > 0
            assert entry.host
