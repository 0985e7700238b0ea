"""Throughput of the data plane against plain sockets, on loopback, with and without TLS.

Two sender processes stream batches of one large and one small array. The peer is what the data plane is built
on, without it: one thread a connection, `recv_into` a pool of slots, an 8-byte acknowledgment a batch and a
window of 4 batches. It neither computes digests nor hands batches to a consumer. With TLS, which is mutual on
both sides, its sockets are blocking ones of `ssl`.

    python -m benchmarks.streaming_throughput [--rounds N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import ssl
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.harness import Row, interleave, ratio_to_best, table
from cs_stream.batches import Array, byte_view
from cs_stream.errors import EndOfInput
from cs_stream.receiver import BatchLayout, Receiver, RunSpec
from cs_stream.sender import Sender, WorkerIdentity
from cs_toolkit.security.certificates import Authority, create_authority
from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import Credentials

SENDERS = 2
WINDOW = 4
LABELS = 256
POOL = 3
ROUNDS = 7
MIN_RATIO = 0.8
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


def batch_pool(case: Case, seed: int) -> list[tuple[Array, Array]]:
    """Make a few different batches, which a sender repeats, so that its input costs nothing."""
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


def sender_process(index: int, certificate: Path, commands: Connection) -> None:
    """Stream for each request, `(address, case, is_plain, uses_tls)`; None ends the process."""
    own_credentials = Credentials(certificate)
    while (command := commands.recv()) is not None:
        address, case, is_plain, uses_tls = command
        credentials = own_credentials if uses_tls else None
        pool = batch_pool(case, index)
        if is_plain:
            send_plain(address, case, pool, credentials)
        else:
            send_streaming(address, case, pool, index, credentials)


def send_streaming(
    address: tuple[str, int],
    case: Case,
    pool: list[tuple[Array, Array]],
    index: int,
    credentials: Credentials | None,
) -> None:
    """Stream through the data plane."""

    def batches(skip: int) -> Iterator[tuple[Array, Array]]:
        return (pool[seq % POOL] for seq in range(skip, case.batches))

    identity = WorkerIdentity("bench", "bench", index, SENDERS, "")
    Sender(address, identity, case.layout, credentials=credentials).run(batches)


def send_plain(
    address: tuple[str, int],
    case: Case,
    pool: list[tuple[Array, Array]],
    credentials: Credentials | None,
) -> None:
    """Stream through a bare socket."""
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if credentials is not None:
        sock = credentials.client_context.wrap_socket(sock, server_hostname=address[0])
    with sock:
        for seq in range(case.batches):
            if seq >= WINDOW:
                receive_acks(sock, 1)
            for array in pool[seq % POOL]:
                sock.sendall(byte_view(array))
        receive_acks(sock, WINDOW)


def receive_acks(sock: socket.socket, count: int) -> None:
    """Wait for acknowledgments."""
    missing = ACK.size * count
    while missing:
        missing -= len(sock.recv(missing))


# -- the receiving process -------------------------------------------------------------------------------


class Senders:
    """The processes that send, each with the pipe of its requests.

    Args:
        certificate: the directory of their certificate.
    """

    def __init__(self, certificate: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for index in range(SENDERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=sender_process, args=(index, certificate, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def start(self, address: tuple[str, int], case: Case, is_plain: bool, uses_tls: bool) -> None:
        """Make all of them stream to an address."""
        for pipe in self._pipes:
            pipe.send((address, case, is_plain, uses_tls))

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


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
    senders: Senders,
    *,
    checksum: bool = True,
    shares_memory: bool = False,
    credentials: Credentials | None = None,
) -> float:
    """Receive everything that the senders stream through the data plane; return GB/s."""
    clock = Clock(case)
    spec = RunSpec(
        "bench", "bench", SENDERS, case.layout, "", chunk_batches=SENDERS, chunks=WINDOW, checksum=checksum
    )
    with Receiver(shares_memory=shares_memory, credentials=credentials) as receiver:
        ring = receiver.open_run(spec)
        senders.start(receiver.address, case, is_plain=False, uses_tls=credentials is not None)
        try:
            while True:
                span = ring.take(30)
                clock.add(span.count)
                ring.release(span)
        except EndOfInput:
            ring.close()
    return case.gigabytes_per_s(clock.seconds)


def receive_plain(case: Case, senders: Senders, credentials: Credentials | None = None) -> float:
    """Receive everything that the senders stream through bare sockets; return GB/s."""
    clock = Clock(case)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        senders.start(listener.getsockname(), case, is_plain=True, uses_tls=credentials is not None)
        threads = []
        for _ in range(SENDERS):
            sock = listener.accept()[0]
            if credentials is not None:
                sock = credentials.server_context.wrap_socket(sock, server_side=True)
            thread = threading.Thread(target=receive_plain_stream, args=(sock, case, clock))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
    return case.gigabytes_per_s(clock.seconds)


def receive_plain_stream(sock: socket.socket, case: Case, clock: Clock) -> None:
    """Receive one sender's batches into a pool of slots."""
    slots = [bytearray(case.size_bytes + LABELS * 4) for _ in range(WINDOW)]
    flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL  # `ssl` allows no flags
    with sock:
        for seq in range(case.batches):
            view = memoryview(slots[seq % WINDOW])
            while view:
                view = view[sock.recv_into(view, 0, flags) :]
            clock.add(1)
            sock.sendall(ACK.pack(seq))


def measure(case: Case, rounds: int, senders: Senders, credentials: Credentials) -> list[Row]:
    """Measure a batch size, without and with TLS."""
    figures = interleave(
        {
            "plain": partial(receive_plain, case, senders),
            "digests": partial(receive_streaming, case, senders),
            "no digests": partial(receive_streaming, case, senders, checksum=False),
            "shared memory": partial(receive_streaming, case, senders, shares_memory=True),
            "plain TLS": partial(receive_plain, case, senders, credentials),
            "TLS": partial(receive_streaming, case, senders, credentials=credentials),
        },
        rounds,
    )
    rates = {name: statistics.median(values) for name, values in figures.items()}
    ratio, tls_ratio = (
        ratio_to_best({ours: figures[ours], peer: figures[peer]}, ours)
        for ours, peer in (("digests", "plain"), ("TLS", "plain TLS"))
    )
    size = f"{case.size_bytes >> 10} KiB" if case.size_bytes < 1 << 20 else f"{case.size_bytes >> 20} MiB"
    return [
        Row(
            f"data plane, {size} batches, {SENDERS} senders",
            f"{rates['digests']:.2f} GB/s (without digests {rates['no digests']:.2f}, "
            f"through shared memory {rates['shared memory']:.2f})",
            f"plain sockets with acks {rates['plain']:.2f} GB/s",
            ratio,
            f"≥ {MIN_RATIO}",
            ratio >= MIN_RATIO,
        ),
        Row(
            f"data plane over TLS, {size} batches, {SENDERS} senders",
            f"{rates['TLS']:.2f} GB/s",
            f"ssl sockets with acks {rates['plain TLS']:.2f} GB/s",
            tls_ratio,
            f"≥ {MIN_RATIO}",
            tls_ratio >= MIN_RATIO,
        ),
    ]


def rows(rounds: int = ROUNDS, cases: Sequence[Case] = CASES) -> list[Row]:
    """Measure all batch sizes, which takes one to two minutes; two rows for each."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        create_authority(site, "bench")
        authority = Authority(site)
        authority.issue(site / "system", Identity("bench", "system"))
        authority.issue(site / "user", Identity("bench", "user"))
        senders = Senders(site / "user")
        try:
            credentials = Credentials(site / "system")
            return [row for case in cases for row in measure(case, rounds, senders, credentials)]
        finally:
            senders.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    print(table(rows(parser.parse_args().rounds)))
