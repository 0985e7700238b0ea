"""Throughput of the data plane on loopback: against plain sockets, gRPC, tf.data service and Arrow Flight.

Sender processes stream batches of one large and one small array into the ring of a run, from which a consumer
takes them (`streaming_peers` has the contenders). The CPU time is that of all processes. Without digests, TLS
and shared memory the data plane does what plain sockets do, and hands the batches over.

    python -m benchmarks.streaming_throughput [--rounds N] [--sizes 1MiB,8MiB]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.harness import Row, interleave, table
from benchmarks.streaming_peers import (
    LIBRARIES,
    LIMIT_S,
    POOL,
    Address,
    Case,
    Clock,
    Contender,
    PlainSockets,
    batch_pool,
    is_installed,
)
from cs_stream.batches import Array
from cs_stream.errors import EndOfInputError
from cs_stream.receiver import Receiver, RunSpec
from cs_stream.sender import Sender, WorkerIdentity
from cs_toolkit.security.certificates import Authority, create_authority
from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import Credentials

ROUNDS = 7
# gRPC takes 10 s for the largest batches.
LIBRARY_ROUNDS = 3
CHUNKS = 4

CASES = (
    Case(1 << 16, 2000),
    Case(1 << 20, 300),
    Case(8 << 20, 60),
    Case(64 << 20, 16),
    Case(1 << 20, 600, senders=1),
    Case(1 << 20, 150, senders=4),
    Case(8 << 20, 120, senders=1),
    Case(8 << 20, 30, senders=4),
)


@dataclass(frozen=True)
class DataPlane:
    """Sender and receiver of `cs_stream`."""

    name: str = "data plane"
    checksum: bool = False
    shares_memory: bool = False

    def send(self, address: Address, case: Case, index: int, credentials: Credentials | None) -> None:
        """Stream the batches of one sender."""
        pool = batch_pool(case, index)

        def batches(skip: int) -> Iterator[tuple[Array, Array]]:
            return (pool[seq % POOL] for seq in range(skip, case.batches))

        identity = WorkerIdentity("bench", "bench", index, case.senders, "")
        Sender(address, identity, case.layout, credentials=credentials).run(batches)

    def receive(
        self, case: Case, start: Callable[[Address], None], clock: Clock, credentials: Credentials | None
    ) -> None:
        """Take the batches of all senders from the ring."""
        spec = RunSpec(
            "bench",
            "bench",
            case.senders,
            case.layout,
            "",
            chunk_batches=case.senders * case.window // CHUNKS,
            chunks=CHUNKS,
            checksum=self.checksum,
        )
        with Receiver(shares_memory=self.shares_memory, credentials=credentials) as receiver:
            ring = receiver.open_run(spec)
            start(receiver.address)
            try:
                while True:
                    span = ring.take(LIMIT_S)
                    clock.add(span.count)
                    ring.release(span)
            except EndOfInputError:
                ring.close()


PLAIN = PlainSockets()
WITHOUT_DIGESTS = DataPlane()
WITH_DIGESTS = DataPlane("data plane with digests", checksum=True)
SHARED_MEMORY = DataPlane("data plane in shared memory", checksum=True, shares_memory=True)
# What is compared with plain sockets, and the ratio that it should reach.
AIMS = ((WITHOUT_DIGESTS, 0.9), (WITH_DIGESTS, 0.8), (SHARED_MEMORY, 2.0))
TLS_AIM = 0.8


# -- the sender processes --------------------------------------------------------------------------------


def sender_process(index: int, certificate: Path, commands: Connection) -> None:
    """Stream for each request, `(contender, address, case, uses_tls)`; None ends the process."""
    credentials = Credentials(certificate)
    while (command := commands.recv()) is not None:
        contender, address, case, uses_tls = command
        contender.send(address, case, index, credentials if uses_tls else None)
        commands.send(None)


class Senders:
    """The processes that send, each with the pipe of its requests.

    Args:
        count: Number of processes.
        certificate: The directory of their certificate.
    """

    def __init__(self, count: int, certificate: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for index in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=sender_process, args=(index, certificate, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def measure(self, contender: Contender, case: Case, credentials: Credentials | None = None) -> Clock:
        """Stream all batches of a case once."""
        pipes = self._pipes[: case.senders]

        def start(address: Address) -> None:
            for pipe in pipes:
                pipe.send((contender, address, case, credentials is not None))

        clock = Clock(case, [process.pid or 0 for process in self._processes[: case.senders]])
        contender.receive(case, start, clock, credentials)
        for pipe in pipes:
            pipe.recv()
        return clock

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


# -- the table -------------------------------------------------------------------------------------------


def measure(case: Case, rounds: int, senders: Senders, credentials: Credentials) -> Iterator[Row]:
    """Measure a case: against plain sockets, with TLS, and against libraries."""
    contenders: dict[str, Callable[[], Clock]] = {
        each.name: partial(senders.measure, each, case)
        for each in (PLAIN, *(contender for contender, _ in AIMS))
    }
    contenders["ssl sockets"] = partial(senders.measure, PLAIN, case, credentials)
    contenders["data plane over TLS"] = partial(senders.measure, WITH_DIGESTS, case, credentials)
    clocks = interleave(contenders, rounds)
    for contender, aim in AIMS:
        yield _row(case, clocks, contender.name, [PLAIN.name], aim)
    yield _row(case, clocks, "data plane over TLS", ["ssl sockets"], TLS_AIM)
    if case.senders != 2:
        return
    installed = [library for module, library in LIBRARIES.items() if is_installed(module)]
    libraries = {each.name: partial(senders.measure, each, case) for each in (WITH_DIGESTS, *installed)}
    missing = [library.name for module, library in LIBRARIES.items() if not is_installed(module)]
    clocks = interleave(libraries, min(rounds, LIBRARY_ROUNDS))
    yield _row(case, clocks, WITH_DIGESTS.name, [each.name for each in installed], 1.0, missing)


def _row(
    case: Case,
    clocks: Mapping[str, Sequence[Clock]],
    ours: str,
    others: Sequence[str],
    aim: float,
    missing: Sequence[str] = (),
) -> Row:
    ratio = statistics.median(
        mine.gigabytes_per_s / max(clocks[name][number].gigabytes_per_s for name in others)
        for number, mine in enumerate(clocks[ours])
    )
    texts = [f"{name} {_figures(clocks[name])}" for name in others]
    texts += [f"{name} is not installed" for name in missing]
    figures = _figures(clocks[ours])
    return Row(f"{ours}, {case.name}", figures, ", ".join(texts), ratio, f"≥ {aim:g}", ratio >= aim)


def _figures(clocks: Sequence[Clock]) -> str:
    rate = statistics.median(clock.gigabytes_per_s for clock in clocks)
    cpu_s = statistics.median(clock.cpu_s_per_gb for clock in clocks)
    return f"{rate:.2f} GB/s with {cpu_s:.2f} CPU s a GB"


def rows(rounds: int = ROUNDS, cases: Sequence[Case] = CASES) -> list[Row]:
    """Measure all cases, which takes some minutes."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        create_authority(site, "bench")
        authority = Authority(site)
        authority.issue(site / "system", Identity("bench", "system"))
        authority.issue(site / "user", Identity("bench", "user"))
        senders = Senders(max(case.senders for case in cases), site / "user")
        try:
            credentials = Credentials(site / "system")
            return [row for case in cases for row in measure(case, rounds, senders, credentials)]
        finally:
            senders.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument(
        "--sizes", default="", metavar="SIZE,...", help="only these sizes, such as 64KiB,1MiB; default: all"
    )
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.sizes.split(",")))
    print(
        table(
            rows(
                arguments.rounds,
                [case for case in CASES if not wanted or case.size_text.replace(" ", "") in wanted],
            )
        )
    )
