"""Connections that break under a sender."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cs_stream.errors import ChecksumError, ConnectError, ReplacedError, WorkerLostError
from cs_stream.frames import HEADER_BYTES
from cs_stream.link import ServerLink
from cs_stream.protocol import ServerEvent
from cs_stream.sender import Sender
from cs_toolkit.network.connection import PeerGoneError
from tests.loopback import SMALL, Loopback, numbered_batch, numbered_input, take_numbered
from tests.processes import wait_until

# The names of runs and of senders are UUIDs in hex.
RUN_ID_BYTES = 32
BATCH_BYTES = HEADER_BYTES + SMALL.nbytes


class Gate:
    """An input of one worker that stops before a batch, once, until it is opened."""

    def __init__(self, before: int, count: int) -> None:
        self.before, self.count = before, count
        self.reached, self.opened = threading.Event(), threading.Event()
        self.skips: list[int] = []

    def __call__(self, skip: int) -> Iterator[tuple[Any, ...]]:
        self.skips.append(skip)
        for seq in range(skip, self.count):
            if seq == self.before and not self.opened.is_set():
                self.reached.set()
                assert self.opened.wait(timeout=60)
            yield numbered_batch(SMALL, seq)


@pytest.mark.parametrize(
    "into_batches", [0, 30, HEADER_BYTES, BATCH_BYTES - 1, BATCH_BYTES, 3 * BATCH_BYTES + 100]
)
def test_a_connection_cut_at_any_byte_changes_nothing(
    into_batches: int, bad_network: Callable[..., Any]
) -> None:
    with Loopback() as run:
        hello_bytes = hello_size(run)
        network = bad_network(
            run.receiver.address, cut_after=(hello_bytes + into_batches, 40, hello_bytes + RUN_ID_BYTES + 10)
        )
        future = run.start(run.sender(0, network.address), numbered_input(SMALL, 0, 1, 12))
        assert take_numbered(run.ring) == list(range(12))
        run.ring.close()
        assert future.result(timeout=60).end == "bye"
        # The second cut is inside HELLO: that attempt was no connection of the run.
        assert network.connections == 4
        assert run.ring.stats().workers[0].connects == 3


def hello_size(run: Loopback) -> int:
    """Bytes of a sender's first HELLO and PROOF; later ones are longer by the run's id."""
    hello = replace(run.sender(0)._hello(), instance="0" * RUN_ID_BYTES)
    return 2 * HEADER_BYTES + len(hello.encode())


def test_a_byte_changed_on_the_way_is_noticed_and_sent_again(bad_network: Callable[..., Any]) -> None:
    with Loopback() as run:
        offset = hello_size(run) + 2 * BATCH_BYTES + HEADER_BYTES + 5
        network = bad_network(run.receiver.address, flip_at=(offset,))
        future = run.start(run.sender(0, network.address), numbered_input(SMALL, 0, 1, 6))
        assert take_numbered(run.ring) == [0, 1, 2, 3, 4, 5]
        run.ring.close()
        assert future.result(timeout=60).reconnects == 1


def test_a_network_that_keeps_changing_bytes_fails_the_run(bad_network: Callable[..., Any]) -> None:
    with Loopback() as run:
        offset = hello_size(run) + HEADER_BYTES + 5
        network = bad_network(run.receiver.address, flip_at=(offset, offset + RUN_ID_BYTES))
        future = run.start(run.sender(0, network.address), numbered_input(SMALL, 0, 1, 6))
        with pytest.raises(ChecksumError, match="it arrived corrupted 2 times: check the network"):
            run.ring.take(timeout_s=20)
        run.ring.close("a batch arrived corrupted")  # the sender may have connected once more
        assert future.result(timeout=60).end == "stopped"


def test_a_sender_that_comes_back_builds_its_input_again() -> None:
    gate = Gate(before=4, count=6)
    with Loopback() as run:
        future = run.start(run.sender(0), gate)
        assert gate.reached.wait(timeout=60)
        assert take_numbered(run.ring, count=4) == [0, 1, 2, 3]
        run.cut(0)
        gate.opened.set()
        assert take_numbered(run.ring, timeout_s=20) == [4, 5]
        run.ring.close()
        summary = future.result(timeout=60)
    assert (summary.end, summary.reconnects) == ("bye", 1)
    assert gate.skips == [0, 4]


def test_a_sender_pauses_between_connections_on_which_no_batch_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> list[ServerEvent]:
        raise PeerGoneError("cut")

    monkeypatch.setattr(ServerLink, "receive", fail)
    pauses_s: list[float] = []
    with Loopback() as run:
        sender = run.sender(0)
        monkeypatch.setattr(sender._stopped, "wait", pauses_s.append)
        future = run.start(sender, numbered_input(SMALL, 0, 1, 1))
        wait_until(lambda: len(pauses_s) >= 6)
        assert pauses_s[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
        sender.stop()
        assert future.result(timeout=60).end == "stopped"


def test_a_sender_whose_input_is_complete_only_waits_again() -> None:
    with Loopback(num_workers=2) as run:
        skips: list[int] = []

        def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
            skips.append(skip)
            return numbered_input(SMALL, 0, 2, 2)(skip)

        future = run.start(run.sender(0), make_batches)
        other = run.start_sender(1, count=6)
        assert take_numbered(run.ring) == [0, 1, 2, 3, 5, 7, 9, 11]
        run.cut(0)
        while run.ring.stats().workers[0].connects < 2:
            assert not future.done()
        run.ring.close()
        assert (future.result(timeout=60).end, future.result().reconnects) == ("bye", 1)
        assert other.result(timeout=60).end == "bye"
        assert skips == [0]


@pytest.mark.parametrize(("reason", "end"), [(None, "bye"), ("the chief gave up", "stopped")])
def test_a_worker_that_returns_after_the_end_of_the_run_learns_how_it_ended(
    reason: str | None, end: str
) -> None:
    gate = Gate(before=1, count=2)
    with Loopback(reconnect_s=0.0) as run:
        future = run.start(run.sender(0), gate)
        assert take_numbered(run.ring, count=1) == [0]
        assert gate.reached.wait(timeout=60)
        run.cut(0)
        with pytest.raises(WorkerLostError):
            run.ring.take(timeout_s=10)
        run.ring.close(reason)
        # The job's next run is open when the worker comes back to the one that has ended.
        following = run.receiver.open_run(run.spec)
        gate.opened.set()
        summary = future.result(timeout=60)
        assert (summary.end, summary.stopped_reason) == (end, reason)
        assert following.stats().workers[0].connects == 0


def test_a_second_process_with_the_same_index_takes_over_and_the_first_reports_it() -> None:
    gate = Gate(before=3, count=6)
    with Loopback() as run:
        future = run.start(run.sender(0), gate)
        assert gate.reached.wait(timeout=60)
        second = run.start_sender(0, count=6)
        assert take_numbered(run.ring) == [0, 1, 2, 3, 4, 5]
        gate.opened.set()
        with pytest.raises(ReplacedError, match=r"worker 0 of job 'job': worker 0 \(host .*\) took over"):
            future.result(timeout=60)
        run.ring.close()
        assert second.result(timeout=60).end == "bye"


def test_a_data_port_that_does_not_come_back_ends_the_worker(bad_network: Callable[..., Any]) -> None:
    with Loopback() as run:
        network = bad_network(run.receiver.address)
        sender = Sender(network.address, run.identity(0), SMALL, reconnect_timeout_s=0.2)
        future = run.start(sender, numbered_input(SMALL, 0, 1, 10**6))
        take_numbered(run.ring, count=1)
        network.close()
        with pytest.raises(ConnectError, match=r"no run took worker 0 of job 'job' within 0\.2 s"):
            future.result(timeout=60)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_three_workers_on_a_network_that_keeps_breaking(seed: int, bad_network: Callable[..., Any]) -> None:
    random = Random(seed)
    with Loopback(num_workers=3, first_position=10) as run:
        networks = []
        for worker in range(3):
            cuts = tuple(random.randrange(20 * BATCH_BYTES) for _ in range(6))
            network = bad_network(run.receiver.address, cut_after=cuts)
            networks.append(network)
            make_batches = numbered_input(SMALL, worker, 3, 100)
            run.start(run.sender(worker, network.address), make_batches)
        assert take_numbered(run.ring, timeout_s=60) == list(range(10, 300))
        assert [network.connections for network in networks] == [7, 7, 7]
