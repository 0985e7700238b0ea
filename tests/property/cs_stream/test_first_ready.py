"""Random arrivals of batches: each is taken once, a run resumes from its cursors, an order is replayed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_stream.batches import BatchLayout
from cs_stream.errors import EndOfInput, LayoutError
from cs_stream.first_ready import FirstReadyState, make_state
from cs_stream.messages import Hello
from cs_stream.order import InputPosition, even_cursors, pack_schedule, unpack_schedule
from cs_stream.run_state import RunSpec, RunState

LAYOUT = BatchLayout.of([("x", "int32", (4,))])

Place = tuple[int, int]


class Run:
    """A run whose workers send batches, in any order, until their shards end.

    Attributes:
        places: Shard and number of every batch that was taken.
        end: The place after them.
    """

    def __init__(
        self, start: InputPosition, workers: int, lengths: list[int], chunks: int = 3, chunk_batches: int = 3
    ) -> None:
        self.spec = RunSpec(
            "job",
            "t",
            workers,
            LAYOUT,
            "",
            start.position,
            chunk_batches=chunk_batches,
            chunks=chunks,
            shards=start.shards,
            digest=start.digest,
            cursors=start.cursors,
            schedule=start.schedule,
        )
        state = make_state(self.spec, "run")
        assert isinstance(state, FirstReadyState)
        self.state, self.lengths, self.end = state, lengths, start
        self.places: list[Place] = []
        self.shards = b""
        self.held: list[tuple[int, int]] = []
        self.slots: dict[int, Place] = {}
        self.limits = [0] * workers
        self.sent = [0] * workers
        self.ended = [False] * workers
        self.over = False
        self.sources = [start.places_of(worker, workers) for worker in range(workers)]
        self.next = list(start.cursors)
        for worker in range(workers):
            self.state.connect(Hello("job", "n", worker, workers, LAYOUT.to_json(), "", 1, "h", "i"))
            self.limits[worker] = self.state.welcome(worker, True, 0.0).limit

    def send(self, worker: int) -> None:
        if self.ended[worker] or self.sent[worker] >= self.limits[worker]:
            return
        own = range(worker, self.spec.order.shards, self.spec.num_workers)
        if all(self.next[shard] >= self.lengths[shard] for shard in own):
            self.state.end(worker, 1)
            self.ended[worker] = True
            return
        shard, batch = next(self.sources[worker])
        self.next[shard] = batch + 1
        if batch < self.lengths[shard]:
            slot = self.state.slot_of_batch(worker, self.sent[worker])
            assert slot not in self.slots, "a batch that is still needed would be overwritten"
            self.slots[slot] = shard, batch
            assert self.state.commit(worker, 1, 0.0, f"{shard}, {batch}".encode())
        else:
            assert self.state.skip(worker, 1, 0.0)
        self.sent[worker] += 1
        self.grant()

    def grant(self) -> None:
        for worker, limit in self.state.new_limits(0.0):
            assert limit > self.limits[worker]
            self.limits[worker] = limit

    def take(self, limit: int | None = None) -> None:
        try:
            span = self.state.take(limit)
        except EndOfInput:
            self.over = True
            return
        if span is None:
            return
        first, count = span
        slot = self.state.slot_of(first)
        assert slot // self.spec.chunk_batches == (slot + count - 1) // self.spec.chunk_batches
        places = self.state.add_to_digest(first, count)
        shards = self.state.shards_of(first)
        assert len(unpack_schedule(shards)) == count == len(places)
        for row, shard in enumerate(unpack_schedule(shards)):
            place = self.slots[slot + row]
            assert place[0] == shard
            assert places[row].cursors[shard] == place[1] + 1
            self.places.append(place)
        self.shards += shards
        self.end = places[-1]
        self.held.append(span)

    def release(self, pick: int) -> None:
        if not self.held:
            return
        first, count = self.held.pop(pick % len(self.held))
        slot = self.state.slot_of(first)
        for row in range(count):
            del self.slots[slot + row]
        self.state.release(first, count)
        self.grant()

    def go(self, seed: int, events: int = 10_000, steps: int = 10_000) -> None:
        """Let random events happen until the end, or until a number of steps is taken."""
        chance = random.Random(seed)
        for _ in range(events):
            if self.over or len(self.places) >= steps:
                return
            match chance.choice("sssttr"):
                case "s":
                    self.send(chance.randrange(self.spec.num_workers))
                case "t":
                    self.take(min(chance.randint(1, 4), steps - len(self.places)))
                case _:
                    self.release(chance.randrange(9))
        pytest.fail("the run does not end")


def start(shards: int) -> InputPosition:
    return InputPosition(shards, 0, cursors=(0,) * shards)


lengths_of_shards = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@given(lengths=lengths_of_shards, workers=st.integers(1, 6), seed=st.integers(0, 1 << 32))
def test_every_batch_is_taken_once_and_a_shard_in_order(lengths: list[int], workers: int, seed: int) -> None:
    run = Run(start(len(lengths)), min(workers, len(lengths)), lengths)
    run.go(seed)
    assert sorted(run.places) == [(s, b) for s, length in enumerate(lengths) for b in range(length)]
    for shard in range(len(lengths)):
        taken = [batch for s, batch in run.places if s == shard]
        assert taken == sorted(taken)


@given(
    length=st.integers(1, 12),
    shards=st.integers(1, 6),
    workers=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    seed=st.integers(0, 1 << 32),
    stop=st.integers(0, 30),
)
def test_a_run_resumes_with_any_number_of_workers_and_its_order_is_replayed(
    length: int, shards: int, workers: list[int], seed: int, stop: int
) -> None:
    lengths = [length] * shards
    first = Run(start(shards), min(workers[0], shards), lengths)
    first.go(seed, steps=min(stop, shards * length))
    # Received batches that were not taken are received again.
    assert all(cursor <= length for cursor in first.end.cursors)
    rest = Run(first.end, min(workers[1], shards), lengths)
    remaining = shards * length - len(first.places)
    rest.go(seed + 1, steps=remaining)
    places = first.places + rest.places
    assert sorted(places) == [(s, b) for s in range(shards) for b in range(length)]
    schedule = first.shards + rest.shards
    again = Run(
        InputPosition(shards, 0, cursors=(0,) * shards, schedule=schedule), min(workers[-1], shards), lengths
    )
    again.go(seed + 2, steps=len(places))
    assert again.places == places
    if places:
        assert again.end == rest.end if rest.places else first.end


@given(
    lengths=lengths_of_shards,
    missing=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    workers=st.lists(st.integers(1, 6), min_size=2, max_size=2),
    seed=st.integers(0, 1 << 32),
)
def test_batches_that_do_not_exist_any_more_are_left_out_of_a_replayed_order(
    lengths: list[int], missing: list[int], workers: list[int], seed: int
) -> None:
    first, again = (min(count, len(lengths)) for count in workers)
    whole = Run(start(len(lengths)), first, lengths)
    whole.go(seed)
    shorter = [max(0, length - fewer) for length, fewer in zip(lengths, missing, strict=False)]
    place = InputPosition(len(lengths), 0, cursors=(0,) * len(lengths), schedule=whole.shards)
    replayed = Run(place, again, shorter)
    replayed.go(seed + 1)
    assert replayed.over
    assert replayed.places == [(shard, batch) for shard, batch in whole.places if batch < shorter[shard]]


@given(shards=st.integers(1, 9), position=st.integers(0, 100))
def test_even_cursors_are_those_of_the_fixed_order(shards: int, position: int) -> None:
    cursors = even_cursors(shards, position)
    assert sum(cursors) == position
    assert max(cursors) - min(cursors) <= 1


def test_a_schedule_is_numbers_of_16_bits() -> None:
    assert pack_schedule([1, 258]) == b"\x01\x00\x02\x01"
    assert list(unpack_schedule(b"\x01\x00\x02\x01")) == [1, 258]


def test_more_workers_than_shards_are_refused_and_a_fixed_order_has_the_usual_state() -> None:
    spec = RunSpec("job", "t", 3, LAYOUT, "", shards=2, cursors=(0, 0))
    with pytest.raises(LayoutError, match="got 3, expected at most 2"):
        make_state(spec, "run")
    assert type(make_state(RunSpec("job", "t", 3, LAYOUT, ""), "run")) is RunState


def test_a_batch_that_is_ready_does_not_wait_for_a_worker_that_is_late() -> None:
    run = Run(start(2), 2, [9, 9])
    for _ in range(3):
        run.send(1)
    run.take()
    assert run.places == [(1, 0), (1, 1)]  # two slots of the worker are in one chunk
    assert run.state.next_worker() == 0
    with pytest.raises(ValueError, match="expected a span that was taken"):
        run.state.release(0, 1)


def test_damage_is_forgiven_once_for_each_batch() -> None:
    run = Run(start(1), 1, [9])
    for number in range(2):
        assert run.state.record_corruption(0, f"checksum of batch {number}")
        run.send(0)
    run.state.check(0, 0.0)
