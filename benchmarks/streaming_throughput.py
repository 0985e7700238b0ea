"""Throughput of the data plane against plain sockets, on loopback.

Two sender processes stream batches of one large and one small array. The peer is what the data plane is built
on, without it: one thread a connection, `recv_into` a pool of slots, an 8-byte acknowledgment a batch and a
window of 4 batches. It neither computes digests nor hands batches to a consumer. Peer and data plane, with
digests, without them, and through shared memory, take turns in one run, so that all see the same machine; a
ratio is the median of the ratios of the rounds.

    python -m benchmarks.streaming_throughput [--rounds N] [--json]
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import numpy as np

from cs_stream.batches import Array, byte_view
from cs_stream.errors import EndOfInput
from cs_stream.receiver import BatchLayout, Receiver, RunSpec
from cs_stream.sender import Sender, WorkerIdentity

SENDERS = 2
WINDOW = 4
LABELS = 256
POOL = 3
ACK = struct.Struct("<Q")


@dataclass(frozen=True)
class Case:
    """One batch size, and how many batches each sender streams; the first tenth is not measured."""

    size_bytes: int
    batches: int

    @property
    def layout(self) -> BatchLayout:
        """The large array and the labels."""
        return BatchLayout.of([("x", "uint8", (self.size_bytes,)), ("y", "int32", (LABELS,))])

    @property
    def warm_up(self) -> int:
        """Batches of all senders that come before the clock starts."""
        return SENDERS * self.batches // 10

    def gigabytes_per_s(self, seconds: float) -> float:
        """Rate of the measured batches."""
        measured = SENDERS * self.batches - self.warm_up
        return measured * self.layout.nbytes / seconds / 1e9


@dataclass(frozen=True)
class Row:
    """Medians of one batch size: rates, and the data plane's share of the plain socket's rate.

    `unchecked` is the data plane without checksums, `shared` that through shared memory.
    """

    size_bytes: int
    plain_gb_per_s: float
    streaming_gb_per_s: float
    unchecked_gb_per_s: float
    shared_gb_per_s: float
    ratio: float
    unchecked_ratio: float
    shared_ratio: float


def batch_pool(case: Case, seed: int) -> list[tuple[Array, Array]]:
    """A few different batches that a sender repeats: the input costs nothing."""
    random = np.random.default_rng(seed)
    return [
        (
            random.integers(0, 256, case.size_bytes, dtype=np.uint8),
            random.integers(0, 10, LABELS, dtype=np.int32),
        )
        for _ in range(POOL)
    ]


CASES = (Case(1 << 16, 1000), Case(1 << 20, 200), Case(8 << 20, 40), Case(64 << 20, 12))


# -- the sender processes --------------------------------------------------------------------------------


def sender_process(index: int, commands: Connection) -> None:
    """Stream for each request: `(address, case, kind)`, or None to end."""
    while (command := commands.recv()) is not None:
        address, case, kind = command
        pool = batch_pool(case, index)
        if kind == "plain":
            send_plain(address, case, pool)
        else:
            send_streaming(address, case, pool, index)


def send_streaming(address: tuple[str, int], case: Case, pool: list[tuple[Array, Array]], index: int) -> None:
    """Stream through the data plane."""

    def batches(skip: int) -> Iterator[tuple[Array, Array]]:
        return (pool[seq % POOL] for seq in range(skip, case.batches))

    identity = WorkerIdentity("bench", "bench", index, SENDERS, "")
    Sender(address, identity, case.layout).run(batches)


def send_plain(address: tuple[str, int], case: Case, pool: list[tuple[Array, Array]]) -> None:
    """Stream through a bare socket."""
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for seq in range(case.batches):
            if seq >= WINDOW:
                sock.recv(ACK.size, socket.MSG_WAITALL)
            buffers = [byte_view(array) for array in pool[seq % POOL]]
            for buffer in buffers:
                sock.sendall(buffer)
        sock.recv(ACK.size * WINDOW, socket.MSG_WAITALL)


# -- the receiving process -------------------------------------------------------------------------------


class Clock:
    """Seconds from the end of the warm-up to the last batch, counted by all receiving threads."""

    def __init__(self, case: Case) -> None:
        self._warm_up, self._total = case.warm_up, SENDERS * case.batches
        self._lock = threading.Lock()
        self._count = 0
        self._start_s = 0.0
        self.seconds = 0.0

    def add(self, count: int) -> None:
        """Count batches."""
        with self._lock:
            before, self._count = self._count, self._count + count
            if before < self._warm_up <= self._count:
                self._start_s = time.perf_counter()
            if self._count == self._total:
                self.seconds = time.perf_counter() - self._start_s


def receive_streaming(
    case: Case,
    start: Callable[[tuple[str, int]], None],
    checksum: bool = True,
    shares_memory: bool = False,
) -> float:
    """Take everything that the senders stream; seconds."""
    clock = Clock(case)
    spec = RunSpec(
        "bench", "bench", SENDERS, case.layout, "", chunk_batches=SENDERS, chunks=WINDOW, checksum=checksum
    )
    with Receiver(shares_memory=shares_memory) as receiver:
        ring = receiver.open_run(spec)
        start(receiver.address)
        try:
            while True:
                span = ring.take(30)
                clock.add(span.count)
                ring.release(span)
        except EndOfInput:
            ring.close()
    return clock.seconds


def receive_plain(case: Case, start: Callable[[tuple[str, int]], None]) -> float:
    """Receive everything that the senders stream; seconds."""
    clock = Clock(case)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        start(listener.getsockname())
        threads = []
        for _ in range(SENDERS):
            thread = threading.Thread(target=receive_plain_stream, args=(listener.accept()[0], case, clock))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
    return clock.seconds


def receive_plain_stream(sock: socket.socket, case: Case, clock: Clock) -> None:
    """Receive one sender's batches into a pool of slots."""
    slots = [bytearray(case.size_bytes + LABELS * 4) for _ in range(WINDOW)]
    with sock:
        for seq in range(case.batches):
            view = memoryview(slots[seq % WINDOW])
            while view:
                view = view[sock.recv_into(view, 0, socket.MSG_WAITALL) :]
            clock.add(1)
            sock.sendall(ACK.pack(seq))


def measure(case: Case, rounds: int, pipes: list[Connection]) -> Row:
    """Interleaved rounds of one batch size."""
    seconds: dict[str, list[float]] = {kind: [] for kind in ("plain", "streaming", "unchecked", "shared")}

    def starter(kind: str) -> Callable[[tuple[str, int]], None]:
        def start(address: tuple[str, int]) -> None:
            for pipe in pipes:
                pipe.send((address, case, kind))

        return start

    for _ in range(rounds):
        seconds["plain"].append(receive_plain(case, starter("plain")))
        seconds["streaming"].append(receive_streaming(case, starter("streaming")))
        seconds["unchecked"].append(receive_streaming(case, starter("streaming"), checksum=False))
        seconds["shared"].append(receive_streaming(case, starter("streaming"), shares_memory=True))
    rates = {kind: case.gigabytes_per_s(statistics.median(values)) for kind, values in seconds.items()}
    ratios = {
        kind: statistics.median(
            plain / own for plain, own in zip(seconds["plain"], seconds[kind], strict=True)
        )
        for kind in ("streaming", "unchecked", "shared")
    }
    return Row(
        case.size_bytes,
        rates["plain"],
        rates["streaming"],
        rates["unchecked"],
        rates["shared"],
        ratios["streaming"],
        ratios["unchecked"],
        ratios["shared"],
    )


def run(rounds: int = 7) -> list[Row]:
    """All batch sizes; a few seconds."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for index in range(SENDERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=sender_process, args=(index, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        return [measure(case, rounds, pipes) for case in CASES]
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run(options.rounds)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{SENDERS} sender processes, {os.cpu_count()} CPUs, medians of {options.rounds} rounds, GB/s")
    print(
        f"{'batch':>9} {'plain':>8} {'streaming':>10} {'ratio':>7} {'no checksum':>12} {'ratio':>7} "
        f"{'shared':>7} {'ratio':>7}"
    )
    for row in rows:
        print(
            f"{row.size_bytes >> 10:>5} KiB {row.plain_gb_per_s:>8.2f} {row.streaming_gb_per_s:>10.2f} "
            f"{row.ratio:>7.2f} {row.unchecked_gb_per_s:>12.2f} {row.unchecked_ratio:>7.2f} "
            f"{row.shared_gb_per_s:>7.2f} {row.shared_ratio:>7.2f}"
        )


if __name__ == "__main__":
    main()
