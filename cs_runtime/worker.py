"""What a worker does in a run: it streams the batches of its shard to the CS system."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

from cs_runtime.errors import NoSystemError
from cs_runtime.input_source import Batch, InputSource
from cs_runtime.options import InputPosition, RunSettings
from cs_runtime.terminal import WaitLog
from cs_stream.batches import BatchLayout
from cs_stream.run_state import count_before
from cs_stream.sender import STOPPED_HERE, Sender, SendSummary, WorkerIdentity
from cs_system.client import join_run, parse_address
from cs_system.errors import InputFailedError
from cs_system.messages import InputIdentity
from csrun.tasks.roles import TaskInfo

log = logging.getLogger("cs_runtime")

# The chief may compile for long and wait for a busy system; when it fails the launcher ends this task.
JOIN_TIMEOUT_S = 24 * 3600.0
STOP_TIMEOUT_S = 10.0


def run_worker(source: InputSource, settings: RunSettings, task: TaskInfo, run: int) -> SendSummary:
    """Streams until the run ends or the input does.

    Args:
        source: The input of the user's program.
        settings: Of the run.
        task: This task.
        run: Number of the run in the program (`cs_runtime.session.next_run`).

    Raises:
        NoSystemError: no `cs_ip`.
        Exception: whatever the input function raises, unchanged; errors of `cs_stream` and `cs_system`.
    """
    return open_stream(source, settings, task, run).run()


@dataclass(frozen=True)
class Stream:
    """A worker's way into the run, before its first batch.

    Attributes:
        sender: Of this worker.
        source: The input of the user's program.
        outside: Number of this worker's batches that the source does not know of, because the program
            leaves them out by itself.
        end: Number of the first batch of this worker that the run does not use; None where its steps are not
            known before.
    """

    sender: Sender
    source: InputSource
    outside: int
    end: int | None

    def run(self) -> SendSummary:
        """Stream what the run uses of the input, until the run ends or the input does.

        Batches after that are not made: an input may fail there, and data sets exist whose samples can be
        read once only.
        """
        summary = self.sender.run(self._batches)
        if summary.stopped_reason not in (None, STOPPED_HERE):
            log.warning("the run was stopped: %s", summary.stopped_reason)
        log.info("streamed %d batches (%.1f MB)", summary.batches, summary.bytes / 1e6)
        return summary

    def _batches(self, number: int) -> Iterator[Batch]:
        batches = self.source.batches(number - self.outside)
        return batches if self.end is None else islice(batches, max(0, self.end - number))


def open_stream(source: InputSource, settings: RunSettings, task: TaskInfo, run: int) -> Stream:
    """Waits until the chief of the job has opened the input, and prepares to stream into it."""
    if settings.cs_ip is None:
        raise NoSystemError
    input_identity = InputIdentity(run, source.input_facts())
    ticket = join_run(
        parse_address(settings.cs_ip),
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
    sender = Sender((ticket.data_host, ticket.data_port), identity, BatchLayout.of_step(source.inputs()))
    used = count_before(task.index, task.num_workers, ticket.first_position)
    if used:
        log.info("%s", _position_text(task.index, ticket.first_position, used, settings.input_position))
    return Stream(
        sender,
        source,
        outside=used if settings.input_position == "program" else 0,
        end=_end_of(task, ticket.first_position, settings),
    )


def _end_of(task: TaskInfo, first_position: int, settings: RunSettings) -> int | None:
    """Return the number of the first batch of a worker that a run does not use; None: it is not known."""
    ends = [] if settings.last_step is None else [settings.last_step]
    if settings.steps is not None:
        ends.append(first_position + settings.steps)
    return count_before(task.index, task.num_workers, min(ends)) if ends else None


def _position_text(worker: int, step: int, used: int, position: InputPosition) -> str:
    """Who leaves out how much of the input of a worker where a training continues."""
    if position == "toolkit":
        return (
            f"continuing at global step {step}: the toolkit skips the first {used} batches of worker {worker}"
        )
    return (
        f"continuing at global step {step}: the program is in charge of its input, the toolkit skips nothing "
        f"of the {used} batches of worker {worker} that earlier runs have used "
        "(CSRunConfig(input_position='toolkit') makes it skip them)"
    )


class _WorkerThread(threading.Thread):
    """Streams beside the chief and keeps what it raised."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(name="worker", daemon=True)
        self.error: BaseException | None = None
        self._stream = stream

    def run(self) -> None:
        try:
            self._stream.run()
        except BaseException as error:  # handed to the chief's thread, which raises it
            self.error = error

    def check(self) -> None:
        """Raises what the stream has raised."""
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Ends the stream, whatever the system is doing."""
        self._stream.sender.stop()
        self.join(timeout=STOP_TIMEOUT_S)


@contextmanager
def worker_beside(
    source: InputSource, settings: RunSettings, task: TaskInfo, run: int
) -> Iterator[Callable[[], None]]:
    """Runs the one worker of a job without a launcher in a thread of the chief's process.

    Enter it when the input is open. When the body fails because the worker did, the worker's own exception
    is raised, with its traceback. Who waits for the worker calls what the body gets, which raises that too:
    the system knows of no worker that has ended before it came.
    """
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
        if isinstance(error, InputFailedError):
            thread.join(timeout=STOP_TIMEOUT_S)
        if thread.error is not None and thread.error is not error:
            raise thread.error from error
        raise
    finally:
        thread.end()
