"""One run's input as pure state: order, holes, credit, and when it fails."""

from dataclasses import replace
from typing import Any

import pytest

from cs_stream.batches import BatchLayout
from cs_stream.errors import ChecksumError, EndOfInput, LayoutError, WorkerFailedError, WorkerLostError
from cs_stream.messages import ErrorCode, Failure, Hello
from cs_stream.order import InputOrder, Part
from cs_stream.run_state import RunSpec, RunState, WorkerPhase

LAYOUT = BatchLayout.of([("x", "int32", (4,))])
SPEC = RunSpec("job", "secret", 2, LAYOUT, "digest", chunk_batches=4, chunks=2, reconnect_s=30.0)


def hello(worker: int, /, **changes: Any) -> Hello:
    stated = Hello("job", "secret", worker, 2, LAYOUT.to_json(), "digest", 100 + worker, "node", f"i{worker}")
    return replace(stated, **changes)


def connected(spec: RunSpec = SPEC) -> RunState:
    state = RunState(spec, "run")
    for worker in range(spec.num_workers):
        state.connect(hello(worker, num_workers=spec.num_workers))
    return state


def receive(state: RunState, worker: int, count: int) -> None:
    for _ in range(count):
        assert state.commit(worker, 1, now_s=0.0)


def test_positions_go_round_robin_over_the_workers() -> None:
    order = InputOrder(3, 3)
    assert [order.position_of(worker, seq) for seq in range(2) for worker in range(3)] == list(range(6))
    assert [order.count_before(worker, 7) for worker in range(3)] == [3, 2, 2]


def test_shards_are_dealt_to_fewer_workers_and_split_for_more() -> None:
    fewer = InputOrder(2, 3)
    assert [fewer.worker_of(position) for position in range(6)] == [0, 1, 0, 0, 1, 0]
    assert fewer.share(0, 4) == [Part(2, 1, 1), Part(0, 2, 1)]
    more = InputOrder(3, 2)
    assert [more.worker_of(position) for position in range(8)] == [0, 1, 2, 0, 0, 1, 2, 0]
    assert more.share(0, 4) == [Part(0, 2, 2), Part(1, 3, 2)]
    with pytest.raises(ValueError, match="got 0 workers and 2 shards"):
        InputOrder(0, 2)


def test_a_shard_that_ends_before_others_of_its_worker_leaves_holes() -> None:
    state = connected(replace(SPEC, num_workers=1, shards=2))
    receive(state, 0, 2)  # a batch of each shard
    assert state.skip(0, 1, 0.0)
    receive(state, 0, 1)
    assert state.take() == (0, 2)
    assert state.take() == (3, 1)
    assert state.skip(0, 1, 0.0)  # at the cursor
    assert state.position == 5
    assert not state.skip(0, 2, 0.0)
    state.end(0, 1)
    with pytest.raises(EndOfInput):
        state.take()
    state.release(0, 2)
    state.release(3, 1)
    assert state.released == state.position


def test_a_run_of_positions_ends_before_the_first_missing_batch_and_at_the_chunk() -> None:
    state = connected()
    assert state.take() is None
    receive(state, 1, 1)
    assert state.take() is None
    receive(state, 0, 2)
    assert state.take() == (0, 3)
    assert state.take() is None
    receive(state, 1, 3)
    receive(state, 0, 1)
    assert state.take() == (3, 1)
    assert state.take() == (4, 2)


def test_batches_that_have_arrived_and_are_not_taken_are_the_queue() -> None:
    state = connected(replace(SPEC, first_position=7))
    receive(state, 0, 2)
    assert [worker.queued for worker in state.stats(0.0).workers] == [2, 0]


def test_a_resumed_run_starts_each_worker_where_it_stood() -> None:
    state = connected(replace(SPEC, first_position=5))
    assert state.welcome(0, True, 0.0).next_seq == 3
    assert state.welcome(1, True, 0.0).next_seq == 2
    receive(state, 1, 1)
    assert state.take() == (5, 1)


def test_credit_covers_exactly_the_slots() -> None:
    state = connected(replace(SPEC, first_position=5))
    limits = [state.welcome(worker, True, 0.0).limit for worker in range(2)]
    assert [InputOrder(2, 2).position_of(worker, limits[worker] - 1) for worker in range(2)] == [12, 11]


def test_credit_returns_when_all_earlier_positions_are_released() -> None:
    state = connected()
    receive(state, 0, 4)
    receive(state, 1, 4)
    assert state.take() == (0, 4)
    assert state.take() == (4, 4)
    state.release(4, 4)
    assert state.new_limits(0.0) == []
    state.release(0, 4)
    assert state.new_limits(0.0) == [(0, 8), (1, 8)]
    assert state.new_limits(0.0) == []


@pytest.mark.parametrize("span", [(0, 4), (2, 4), (4, 1)])
def test_a_system_that_is_not_held_cannot_be_released(span: tuple[int, int]) -> None:
    state = connected()
    receive(state, 0, 2)
    receive(state, 1, 2)
    assert state.take() == (0, 4)
    state.release(0, 4)
    with pytest.raises(ValueError, match="expected taken and unreleased ones, which are in 4 to 3"):
        state.release(*span)


def test_an_ended_worker_leaves_holes_that_are_skipped_and_give_credit() -> None:
    state = connected()
    receive(state, 0, 1)
    receive(state, 1, 4)
    state.end(0, 1)
    taken = [state.take() for _ in range(4)]
    assert taken == [(0, 2), (3, 1), (5, 1), (7, 1)]
    assert state.take() is None
    for first, count in [(0, 2), (3, 1), (5, 1), (7, 1)]:
        state.release(first, count)
    # Every slot is free again, and every second belongs to the remaining worker.
    assert state.released == state.position == 9
    assert dict(state.new_limits(0.0))[1] == 8


def test_an_end_that_comes_late_moves_the_cursor_that_waits_for_it() -> None:
    state = connected(replace(SPEC, chunk_batches=1, chunks=1))
    receive(state, 0, 1)
    assert state.take() == (0, 1)
    state.release(0, 1)
    assert state.next_worker() == 1
    state.end(1, 1)
    assert state.next_worker() == 0
    # The only slot, which the ended worker would have had, goes to the remaining one.
    assert dict(state.new_limits(0.0))[0] == 2


def test_the_input_ends_when_every_worker_has_ended() -> None:
    state = connected()
    receive(state, 0, 2)
    receive(state, 1, 1)
    state.end(1, 1)
    assert state.take() == (0, 3)
    assert state.take() is None
    state.end(0, 1)
    with pytest.raises(EndOfInput, match="all workers have ended"):
        state.take()


def test_an_input_without_any_batch_ends_immediately() -> None:
    state = connected()
    state.end(0, 1)
    state.end(1, 1)
    with pytest.raises(EndOfInput):
        state.take()


def test_a_fenced_generation_changes_nothing() -> None:
    state = connected()
    assert state.connect(hello(0)) == 2
    assert not state.commit(0, 1, 0.0)
    state.end(0, 1)
    state.lose(0, 1, "late", 0.0)
    state.fail(0, 1, Failure(ErrorCode.INPUT_FAILED, "late"))
    assert state.welcome(0, True, 0.0).next_seq == 0
    assert state.stats(0.0).workers[0].phase is WorkerPhase.CONNECTED


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_workers": 3}, "num_workers: got 3, expected 2"),
        ({"worker": 2}, "worker: got index 2, expected 0 to 1"),
        ({"input_digest": "d2"}, "input_digest: got 'd2', expected 'digest'"),
        ({"protocol_min": 3, "protocol_max": 4}, "protocol: got 3 to 4, expected 2"),
        (
            {"layout": [["x", "int32", [5]]], "num_workers": 1},
            "num_workers: got 1, expected 2; layout: field 0: got 'x: int32[5]', expected 'x: int32[4]'",
        ),
    ],
)
def test_a_worker_of_another_run_is_refused_with_the_reason(changes: dict[str, Any], text: str) -> None:
    refused = RunState(SPEC, "run").refusal(hello(0, **changes))
    assert refused == Failure(ErrorCode.REFUSED, text)
    assert "secret" not in repr(refused)


def test_a_later_version_that_still_speaks_ours_is_taken() -> None:
    assert RunState(SPEC, "run").refusal(hello(0, protocol_min=1, protocol_max=4)) is None


def test_a_replaced_process_cannot_come_back_but_its_successor_can() -> None:
    state = connected()
    assert state.refusal(hello(0, run_id="run", instance="i0")) is None
    assert state.refusal(hello(0, instance="new")) is None
    state.connect(hello(0, instance="new", pid=7))
    refused = state.refusal(hello(0, run_id="run", instance="i0"))
    assert refused == Failure(ErrorCode.REPLACED, "worker 0 (host node, pid 7) took over in the meantime")


def test_a_lost_worker_has_its_time_to_come_back() -> None:
    state = connected()
    state.lose(0, 1, "the connection was closed", now_s=100.0)
    assert state.recheck_at_s() == 130.0
    state.check(0, now_s=129.9)
    with pytest.raises(WorkerLostError) as caught:
        state.check(0, now_s=130.0)
    assert caught.value.worker == 0
    assert str(caught.value) == (
        "worker 0 (host node, pid 100) is gone for 30.0 s (the connection was closed) and no process took "
        "its place within 30 s; see the worker's log"
    )
    state.connect(hello(0, instance="new"))
    state.check(0, now_s=1000.0)


def test_a_failed_input_is_raised_after_the_batches_before_it() -> None:
    state = connected()
    receive(state, 0, 1)
    state.fail(0, 1, Failure(ErrorCode.INPUT_FAILED, "input failed: ValueError: bad record", "Traceback"))
    state.lose(0, 1, "the connection was closed", 0.0)
    assert state.take() == (0, 1)
    with pytest.raises(WorkerFailedError) as caught:
        state.check(0, 0.0)
    assert str(caught.value) == "worker 0 (host node, pid 100): input failed: ValueError: bad record"
    assert caught.value.detail == "Traceback"
    refused = state.refusal(hello(0, instance="new"))
    assert refused is not None
    assert refused.code == ErrorCode.STOPPED


def test_damage_is_forgiven_once_for_each_batch() -> None:
    state = connected()
    assert state.record_corruption(1, "checksum of batch 0")
    receive(state, 1, 1)
    assert state.record_corruption(1, "checksum of batch 4")
    state.check(1, 0.0)
    assert not state.record_corruption(1, "checksum of batch 4")
    with pytest.raises(
        ChecksumError, match=r"pid 101\): checksum of batch 4, and it arrived corrupted 2 times: check"
    ):
        state.check(0, 0.0)
    refused = state.refusal(hello(1))
    assert refused is not None
    assert refused.code == ErrorCode.STOPPED


def test_waiting_times_show_the_bottleneck_of_the_run() -> None:
    state = connected()
    for _ in range(4):
        state.commit(0, 1, now_s=10.0)
        state.commit(1, 1, now_s=10.0)
    assert state.stats(now_s=12.0).workers[0].credit_wait_s == 2.0
    state.take()
    state.release(0, 4)
    state.new_limits(now_s=15.0)
    state.add_wait(1, 0.5)
    first, second = state.stats(now_s=99.0).workers
    assert (first.credit_wait_s, first.consumer_wait_s) == (5.0, 0.0)
    assert (second.credit_wait_s, second.consumer_wait_s) == (5.0, 0.5)
    assert (first.batches, first.size_bytes, first.connects) == (4, 4 * 64, 1)


def test_primed_means_a_first_batch_an_end_or_no_slot() -> None:
    state = RunState(replace(SPEC, chunk_batches=1, chunks=2, num_workers=4), "run")
    assert set(state.missing_workers()) == {0, 1, 2, 3}
    for worker in range(4):
        state.connect(hello(worker, num_workers=4))
    assert state.missing_workers() == {
        0: "worker 0 (host node, pid 100) is connected",
        1: "worker 1 (host node, pid 101) is connected",
    }
    receive(state, 0, 1)
    state.end(1, 1)
    assert state.stats(0.0).primed


@pytest.mark.parametrize("field", ["num_workers", "chunk_batches", "chunks"])
def test_a_run_needs_workers_and_slots(field: str) -> None:
    wrong: dict[str, Any] = {field: 0}
    with pytest.raises(LayoutError, match=f"{field}: got 0, expected at least 1"):
        replace(SPEC, **wrong)
