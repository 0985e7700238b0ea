"""Throughput of the data plane over mutual TLS against plain `ssl` sockets, on loopback.

As `streaming_throughput`, with TLS on both sides: the peer is one thread a connection that calls `recv_into`
of a blocking `ssl.SSLSocket` with a pool of slots, an 8-byte acknowledgment a batch and a window of 4
batches. It hands no batches to a consumer.

    python -m benchmarks.streaming_tls [--rounds N] [--json]
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.streaming_throughput import ACK, LABELS, POOL, SENDERS, WINDOW, Case, Clock, batch_pool
from cs_stream.batches import Array, byte_view
from cs_stream.errors import EndOfInput
from cs_stream.receiver import Receiver, RunSpec
from cs_stream.sender import Sender, WorkerIdentity
from cs_toolkit.security.certificates import Authority, create_authority
from cs_toolkit.security.tls import Credentials, Identity


@dataclass(frozen=True)
class Row:
    """Medians of one batch size: rates, and the data plane's share of the rate of plain `ssl` sockets."""

    size_bytes: int
    plain_gb_per_s: float
    streaming_gb_per_s: float
    ratio: float


def sender_process(index: int, directory: str, commands: Connection) -> None:
    """Stream for each request: `(address, case, kind)`, or None to end."""
    credentials = Credentials(Path(directory))
    while (command := commands.recv()) is not None:
        address, case, kind = command
        pool = batch_pool(case, index)
        if kind == "plain":
            send_plain(address, case, pool, credentials)
        else:
            send_streaming(address, case, pool, index, credentials)


def send_streaming(
    address: tuple[str, int],
    case: Case,
    pool: list[tuple[Array, Array]],
    index: int,
    credentials: Credentials,
) -> None:
    """Stream through the data plane."""

    def batches(skip: int) -> Iterator[tuple[Array, Array]]:
        return (pool[seq % POOL] for seq in range(skip, case.batches))

    identity = WorkerIdentity("bench", "bench", index, SENDERS, "")
    Sender(address, identity, case.layout, credentials=credentials).run(batches)


def send_plain(
    address: tuple[str, int], case: Case, pool: list[tuple[Array, Array]], credentials: Credentials
) -> None:
    """Stream through an `ssl` socket."""
    plain = socket.create_connection(address)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with credentials.client_context.wrap_socket(plain, server_hostname=address[0]) as sock:
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


def receive_streaming(
    case: Case, start: Callable[[tuple[str, int]], None], credentials: Credentials
) -> float:
    """Take everything that the senders stream; seconds."""
    clock = Clock(case)
    spec = RunSpec("bench", "bench", SENDERS, case.layout, "", chunk_batches=SENDERS, chunks=WINDOW)
    with Receiver(credentials=credentials) as receiver:
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


def receive_plain(case: Case, start: Callable[[tuple[str, int]], None], credentials: Credentials) -> float:
    """Receive everything that the senders stream; seconds."""
    clock = Clock(case)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        start(listener.getsockname())
        threads = []
        for _ in range(SENDERS):
            sock = credentials.server_context.wrap_socket(listener.accept()[0], server_side=True)
            thread = threading.Thread(target=receive_plain_stream, args=(sock, case, clock))
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
                view = view[sock.recv_into(view) :]
            clock.add(1)
            sock.sendall(ACK.pack(seq))


def measure(case: Case, rounds: int, pipes: list[Connection], credentials: Credentials) -> Row:
    """Interleaved rounds of one batch size."""
    seconds: dict[str, list[float]] = {"plain": [], "streaming": []}

    def starter(kind: str) -> Callable[[tuple[str, int]], None]:
        def start(address: tuple[str, int]) -> None:
            for pipe in pipes:
                pipe.send((address, case, kind))

        return start

    for _ in range(rounds):
        seconds["plain"].append(receive_plain(case, starter("plain"), credentials))
        seconds["streaming"].append(receive_streaming(case, starter("streaming"), credentials))
    rates = {kind: case.gigabytes_per_s(statistics.median(values)) for kind, values in seconds.items()}
    pairs = zip(seconds["plain"], seconds["streaming"], strict=True)
    ratio = statistics.median(plain / own for plain, own in pairs)
    return Row(case.size_bytes, rates["plain"], rates["streaming"], ratio)


def run(rounds: int = 7) -> list[Row]:
    """All batch sizes; a few seconds."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        create_authority(site, "bench")
        authority = Authority(site)
        authority.issue(site / "system", Identity("bench", "system"))
        authority.issue(site / "user", Identity("bench", "user"))
        for index in range(SENDERS):
            ours, theirs = context.Pipe()
            arguments = (index, str(site / "user"), theirs)
            process = context.Process(target=sender_process, args=arguments, daemon=True)
            process.start()
            pipes.append(ours)
            processes.append(process)
        try:
            credentials = Credentials(site / "system")
            cases = (Case(1 << 20, 200), Case(8 << 20, 40))
            return [measure(case, rounds, pipes, credentials) for case in cases]
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
    print(f"{'batch':>8} {'ssl':>8} {'streaming':>10} {'ratio':>7}")
    for row in rows:
        print(
            f"{row.size_bytes >> 20:>4} MiB {row.plain_gb_per_s:>8.2f} {row.streaming_gb_per_s:>10.2f} "
            f"{row.ratio:>7.2f}"
        )


if __name__ == "__main__":
    main()
