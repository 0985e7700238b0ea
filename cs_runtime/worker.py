"""The worker's side of a run: stream the batches of its shard to the CS system."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, repeat

from cs_runtime.errors import NoSystemError
from cs_runtime.input_source import Batch, InputSource
from cs_runtime.job_spans import write_spans
from cs_runtime.options import RunSettings
from cs_runtime.terminal import WaitLog
from cs_stream.batches import BatchLayout
from cs_stream.errors import ConnectError, ProtocolError
from cs_stream.order import InputOrder, InputPosition
from cs_stream.sender import STOPPED_HERE, Sender, SendSummary, WorkerIdentity
from cs_system.address import parse_addresses
from cs_system.client.pool import SystemPool
from cs_system.errors import (
    ConnectionLostError,
    InputFailedError,
    RunOverError,
    SystemUnreachableError,
)
from cs_system.messages import InputIdentity
from csrun.tasks.final_errors import mark_final_error
from csrun.tasks.roles import TaskInfo
from input_rules.input_export import Shard

log = logging.getLogger("cs_runtime")

# The chief may compile for hours and wait for a busy system; if it fails, the launcher ends this task.
JOIN_TIMEOUT_S = 24 * 3600.0
STOP_TIMEOUT_S = 10.0


def run_worker(source: InputSource, settings: RunSettings, task: TaskInfo, run: int) -> SendSummary:
    """Stream batches until the run or the input ends.

    Args:
        source: The input of the user's program.
        settings: Options of the run.
        task: This task.
        run: Number of the run in the program (`cs_runtime.session.next_run`).

    Raises:
        NoSystemError: `settings.cs_ip` is missing.
        Exception: Any error of the input function, unchanged, and errors of `cs_stream` and `cs_system`.
    """
    if settings.cs_ip is None:
        raise NoSystemError
    try:
        pool = SystemPool(parse_addresses(settings.cs_ip))
        with write_spans(task, run, pool.read_clock):
            return open_stream(source, settings, task, run, pool).run()
    except RunOverError as error:
        log.info("%s; this worker was restarted, and continues with the next run", error)
        return SendSummary(batches=0, bytes=0, seconds=0.0, reconnects=0, end="bye")
    except Exception as error:
        if not isinstance(error, _WORTH_A_RESTART):
            mark_final_error(os.environ)
        raise


# Errors of the connection. Others, of the input function or of a worker that the system refuses, have been
# reported to the chief, which ends the run: a new process would meet them again.
_WORTH_A_RESTART = (ConnectError, ProtocolError, ConnectionLostError, SystemUnreachableError)


@dataclass(frozen=True)
class Stream:
    """A worker's connection to the run, before its first batch.

    Attributes:
        sender: Sends the batches.
        source: The input of the user's program.
        share: The part of the input that this worker reads.
        outside: Number of this worker's batches that the program skips by itself, so that the source does
            not count them.
        end: Number of this worker's first batch that the run does not use; None if its number of steps is
            unknown.
    """

    sender: Sender
    source: InputSource
    share: Share
    outside: int
    end: int | None

    def run(self) -> SendSummary:
        """Stream the batches that the run uses, until the run or the input ends."""
        summary = self.sender.run(self._batches)
        if summary.stopped_reason not in (None, STOPPED_HERE):
            log.warning("the run was stopped: %s", summary.stopped_reason)
        log.info("streamed %d batches (%.1f MB)", summary.batches, summary.bytes / 1e6)
        return summary

    def _batches(self, number: int) -> Iterator[Batch | None]:
        share = self.share
        batches: Iterator[Batch | None]
        if share.is_one_shard:
            batches = self.source.batches(share.first_batch + number - self.outside)
        else:
            batches = read_share(self.source, share, number)
        # No batch after the end is read: the input may fail there, and some data can be read only once.
        return batches if self.end is None else islice(batches, max(0, self.end - number))


def open_stream(
    source: InputSource, settings: RunSettings, task: TaskInfo, run: int, pool: SystemPool | None = None
) -> Stream:
    """Wait until the chief has opened the input of the run, and prepare to stream into it.

    `pool` has the systems of the settings, for a caller that needs to know which of them the job uses.
    """
    if settings.cs_ip is None:
        raise NoSystemError
    pool = pool or SystemPool(parse_addresses(settings.cs_ip))
    input_identity = InputIdentity(run, source.input_facts())
    ticket = pool.join_run(
        task.job_id,
        task.token,
        JOIN_TIMEOUT_S,
        input_identity,
        f"worker {task.index} on {task.host}",
        WaitLog(),
    )
    identity = WorkerIdentity(
        job_id=task.job_id,
        token=task.token,
        worker=task.index,
        num_workers=task.num_workers,
        input_digest=input_identity.digest,
    )
    sender = Sender(
        (ticket.data_host, ticket.data_port),
        identity,
        BatchLayout.of_step(source.inputs()),
        credentials=ticket.credentials,
    )
    program_skips = settings.options.program_skips_batches
    share = Share(ticket.position, task.index, task.num_workers)
    used = share.used_batches
    if program_skips and os.environ.get("CSRUN_RESTARTS"):
        log.warning(
            "this worker was restarted during the run, which began at global step %d, and the program "
            "positions its input: it must position it at that step, not at that of a newer checkpoint",
            ticket.first_step,
        )
    if used:
        _log_position(task.index, ticket.first_step, used, program_skips=program_skips)
    steps = [] if settings.last_step is None else [settings.last_step - ticket.first_step]
    if settings.steps is not None:
        steps.append(settings.steps)
    return Stream(
        sender,
        source,
        share,
        outside=used if program_skips else 0,
        end=share.end(min(steps)) if steps else None,
    )


@dataclass(frozen=True)
class Share:
    """The part of the input that a worker reads in a run.

    Attributes:
        start: Place at which the run begins.
        worker: Index of the worker.
        workers: Number of workers.
    """

    start: InputPosition
    worker: int
    workers: int

    @property
    def order(self) -> InputOrder:
        """The order of the input, if it is fixed."""
        return InputOrder(self.workers, self.start.shards)

    @property
    def is_one_shard(self) -> bool:
        """True if every worker reads one shard, the one with its own index."""
        return self.start.shards == self.workers

    @property
    def first_batch(self) -> int:
        """The batch of the worker's only shard that it sends as its batch 0."""
        return self.start.cursors[self.worker] if self.start.is_first_ready else 0

    @property
    def used_batches(self) -> int:
        """Number of batches of the worker's shards that earlier runs have used."""
        if self.start.is_first_ready:
            return sum(self.start.cursors[self.worker :: self.workers])
        return self.order.count_before(self.worker, self.start.position)

    def end(self, steps: int) -> int | None:
        """Return the number of the first batch that a run of that many steps does not use; None if open."""
        if self.start.is_first_ready:
            return None
        return self.order.count_before(self.worker, self.start.position + steps)

    def places(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield shard and batch of the worker's batches from `number` on."""
        if self.start.is_first_ready:
            return islice(self.start.places_of(self.worker, self.workers), number, None)
        return self.order.places_of(self.worker, number)


def read_share(source: InputSource, share: Share, number: int) -> Iterator[Batch | None]:
    """Read the shards of a worker, or its parts of them, from its batch `number` on.

    Yields:
        The batches; None in the place of a batch that does not exist because its shard has ended.
    """
    order = share.order
    left = {part.shard for part in order.share(share.worker, share.start.position)}
    log.info(
        "worker %d of %d reads %d of the %d shards of the input%s",
        share.worker,
        share.workers,
        len(left),
        order.shards,
        f", one batch in {order.stride} of each" if order.stride > 1 else "",
    )
    readers: dict[int, Iterator[Batch]] = {}
    missing = 0  # places without a batch, which are sent only if a batch follows
    for shard, first in share.places(number):
        if shard in left and shard not in readers:
            readers[shard] = source.part(Shard(order.shards, shard), first, order.stride)
        batch = next(readers[shard], None) if shard in left else None
        if batch is not None:
            yield from repeat(None, missing)
            missing = 0
            yield batch
            continue
        left.discard(shard)
        if not left:
            return
        missing += 1


def _log_position(worker: int, step: int, used: int, *, program_skips: bool) -> None:
    """Log which side skips the used batches of a worker when a training run resumes."""
    if program_skips:
        log.warning(
            "continuing at global step %d: the program positions its input, so the toolkit skips none of the "
            "%d batches of worker %d that earlier runs have used (with "
            "CSRunConfig(input_position='toolkit') it skips them)",
            *(step, used, worker),
        )
    else:
        log.info(
            "continuing at global step %d: the toolkit skips the first %d batches of worker %d",
            *(step, used, worker),
        )


class _WorkerThread(threading.Thread):
    """Streams batches in the chief's process and stores the error that ends it."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(name="worker", daemon=True)
        self.error: BaseException | None = None
        self._stream = stream

    def run(self) -> None:
        try:
            self._stream.run()
        except BaseException as error:  # `check` raises it in the chief's thread
            self.error = error

    def check(self) -> None:
        """Raise the error of the stream, if it has failed."""
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """End the stream, regardless of the state of the system."""
        self._stream.sender.stop()
        self.join(timeout=STOP_TIMEOUT_S)


@contextmanager
def run_in_process_worker(
    source: InputSource, settings: RunSettings, task: TaskInfo, run: int
) -> Iterator[Callable[[], None]]:
    """Run the only worker of a job without a launcher in a thread of the chief's process.

    The input must be open. If the body fails because the worker did, the worker's exception is raised, with
    its traceback.

    Yields:
        A function that raises the worker's error, if any. A caller that waits for the worker must call it.
    """
    # The system does not know of a worker that failed before it connected.
    if not task.in_process_worker:
        yield lambda: None
        return
    stream = open_stream(source, settings, replace(task, role="worker", index=0), run)
    thread = _WorkerThread(stream)
    thread.start()
    try:
        yield thread.check
        thread.join(timeout=STOP_TIMEOUT_S)
    except Exception as error:
        # The system may report the end of the stream before the thread has stored its error.
        if isinstance(error, InputFailedError):
            thread.join(timeout=STOP_TIMEOUT_S)
        if thread.error is not None and thread.error is not error:
            raise thread.error from error
        raise
    finally:
        thread.end()
