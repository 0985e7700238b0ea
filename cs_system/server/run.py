"""One reservation's run on the system: artifact, program, state, input, steps.

Everything here is called in the event loop. Device operations run in the thread of the device, one at a time.
An operation whose caller is gone is finished, or stopped at its next call to the device, never abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from cs_stream import errors as streaming_errors
from cs_stream.batches import BatchLayout
from cs_stream.order import InputPosition
from cs_stream.receiver import BatchRing, Receiver, RunSpec, RunStats, WorkerPhase, WorkerStats
from cs_system.engine.base import ExternalEngine, WaferMonitor, ring_size
from cs_system.errors import (
    ArtifactRefusedError,
    CsSystemError,
    EngineLostError,
    InputFailedError,
    InputMismatchError,
    InputRefusedError,
    StateMismatchError,
    WorkerLostError,
    WrongOrderError,
)
from cs_system.memoryx.config import MemoryxConfig
from cs_system.messages import InputIdentity, samples_per_step
from cs_system.monitoring.recorder import RunRecorder, StepTraffic, Totals
from cs_system.part_spans import read_part_spans, remove_ended_parts
from cs_system.server.engine_process import EnginePool, EngineProcess
from cs_system.server.engines import make_engine
from cs_system.server.steps import INPUT_TIMEOUT_S, Progress, StepLoop, StepValues
from cs_system.swarmx.health import NOT_SLOW
from cs_system.swarmx.hosts import HostPool
from cs_toolkit.execution_options import ONE_WAFER, SystemShare
from cs_toolkit.floorplan import Floorplan, FloorplanError, read_floorplan
from cs_toolkit.layered_step import schedule_from_json, traffic
from cs_toolkit.network.liveness import DEFAULT_PEER_TIMEOUT_S
from cs_toolkit.spans import SpanRing, span_document
from cs_toolkit.step import CompiledStep

T = TypeVar("T")

# A run whose device has lacked batches for less time than this is still shown as running.
_WAITING_AFTER_S = 0.5
_OPERATION_END_S = 5.0


@dataclass(frozen=True)
class RunLimits:
    """Limits of a run.

    Attributes:
        input_memory_bytes: Host memory for batches that wait to be computed.
        reconnect_s: How long a lost worker may stay away.
        input_patience_s: How long a worker may take for a batch that the device is waiting for.
        peer_timeout_s: Silence after which the connection of a worker is lost.
    """

    input_memory_bytes: int = 1 << 30
    reconnect_s: float = 60.0
    input_patience_s: float = INPUT_TIMEOUT_S
    peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S


class Run:
    """The run of one reservation.

    Args:
        job: Name of the job, for logs and messages.
        token: Secret of the job; its workers prove to the receiver that they know it.
        device: The executor with the single thread that uses the device.
        receiver: The data plane.
        limits: Limits of memory and waiting times.
        memoryx: Where the weights of weight streaming are stored.
        host_pool: Where wafers that share a batch are started; None: on this machine.
        engines: Starts the process that computes the run.
    """

    def __init__(
        self,
        job: str,
        token: str,
        device: Executor,
        receiver: Receiver,
        limits: RunLimits,
        memoryx: MemoryxConfig,
        host_pool: HostPool | None,
        engines: EnginePool,
    ) -> None:
        self.job = job
        self._reported_straggler: str | None = None
        self.program: CompiledStep | None = None
        self.identity: InputIdentity | None = None
        self.first_step = 0
        self.first_position = InputPosition(1, 0)
        self.progress = Progress(0)
        self.share = ONE_WAFER
        self.floorplan: Floorplan | None = None
        self.recorder = RunRecorder()
        self._spans, self._began_s = SpanRing(), time.monotonic()
        self._token = token
        self._device = device
        self._receiver = receiver
        self._limits = limits
        self._memoryx = memoryx
        self._host_pool = host_pool
        self._log = logging.LoggerAdapter(logging.getLogger("cs_system.server"), {"job": job})
        self._engines = engines
        self._process: EngineProcess | None = None
        self._engine: ExternalEngine | None = None
        self._chunks = 0
        self._ring: BatchRing | None = None
        self._loop: StepLoop | None = None
        self._operation: str | None = None
        self._reading = asyncio.Lock()
        self._current: asyncio.Future[Any] | None = None
        self._stops: set[threading.Event] = set()
        self._mismatch: InputMismatchError | None = None
        self._run_s = 0.0
        self._running_since: float | None = None

    # Status

    def state(self) -> str:
        """Return RESERVED, PROGRAMMING, WAITING FOR INPUT or RUNNING."""
        if self._operation == "program":
            return "PROGRAMMING"
        if self._ring is None:
            return "RESERVED"
        if self._operation == "run_steps":
            since = self.progress.waiting_since
            starved = since is not None and time.monotonic() - since > _WAITING_AFTER_S
            return "WAITING FOR INPUT" if starved else "RUNNING"
        if self.progress.step > self.first_step:
            return "RUNNING"
        return "WAITING FOR INPUT"

    @property
    def held_s(self) -> float:
        """Time since the job has got the system."""
        return time.monotonic() - self._began_s

    @property
    def is_working(self) -> bool:
        """True while the device works for the chief, except on steps, whose outputs show that it reads."""
        return self._operation not in (None, "run_steps")

    def waiting_for(self, stats: RunStats) -> tuple[int, ...]:
        """Return the indices of the workers that the run is waiting for, from `input_stats`."""
        if self.state() != "WAITING FOR INPUT":
            return ()
        if self._operation == "run_steps":
            return (stats.next_worker,)
        return tuple(worker.worker for worker in stats.workers if not _is_ready(worker))

    def check_primed(self) -> str | None:
        """Return None if every worker's first batch has arrived, else a description of the missing workers.

        Raises:
            InputMismatchError: a worker has another input.
            WorkerLostError, InputFailedError: a worker will not come any more.
            WrongOrderError: the input is not open.
        """
        if self._ring is None:
            raise WrongOrderError(
                "wait_workers before open_input; the order is load, open_input, wait_workers"
            )
        if self._mismatch is not None:
            raise self._mismatch
        try:
            self._ring.wait_primed(0.0)
        except streaming_errors.StallError:
            missing = [w for w in self._ring.stats().workers if not _is_ready(w)]
            return ", ".join(f"worker {w.worker} ({_describe_wait(w)})" for w in missing) or None
        except streaming_errors.StreamingError as error:
            raise convert_input_error(error) from error
        return None

    def unresponsive(self) -> str | None:
        """Describe a part of the system that has not answered for seconds; None if there is none."""
        return None if self._engine is None else self._engine.unresponsive()

    def stragglers(self) -> WaferMonitor | None:
        """Return the work times of several wafers; None if there is only one wafer."""
        return None if self._engine is None else self._engine.stragglers()

    def news(self) -> str | None:
        """Describe, for the chief, a wafer that has become slow or stopped being slow since the last call."""
        monitor = self.stragglers()
        report = None if monitor is None else monitor.report
        is_news, self._reported_straggler = report != self._reported_straggler, report
        return (report or NOT_SLOW) if is_news else None

    def delay_text(self, since_s: float) -> str:
        """Say why no step has ended since a monotonic time: the device waits for something, or computes."""
        unresponsive = self.unresponsive()
        if unresponsive is not None:
            return unresponsive
        waiting_since = self.progress.waiting_since
        if self._ring is None or waiting_since is None:
            seconds = time.monotonic() - since_s
            return f"the CS system is computing from step {self.progress.step} on, for {seconds:.0f} s"
        stats = self._ring.stats()
        worker = stats.workers[stats.next_worker]
        seconds = time.monotonic() - waiting_since
        return (
            f"waiting for a batch of worker {worker.worker} for {seconds:.0f} s ({_describe_wait(worker)}); "
            f"the run ends after {self._limits.input_patience_s:g} s"
        )

    def sample(self, now_s: float, time: float) -> None:
        """Record a sample for rates and curves; `now_s` is monotonic, `time` in seconds since the epoch."""
        waiting_since = self.progress.waiting_since
        waiting_s = 0.0 if waiting_since is None else max(0.0, now_s - waiting_since)
        self.recorder.sample(now_s, time, self.progress.step, self.input_stats(), waiting_s)

    def totals(self) -> Totals:
        """Return the usage of the reservation so far."""
        return self.recorder.totals(self.input_stats())

    def input_stats(self) -> RunStats | None:
        """Return the statistics of the open input; None if there is none."""
        return None if self._ring is None else self._ring.stats()

    def refuse(self, error: InputMismatchError) -> None:
        """Record a mismatch that was reported to a worker, for the chief, which waits for all workers."""
        self._log.error("%s", error)
        self._mismatch = error

    def samples_per_s(self) -> float:
        """Return the samples per second over the last seconds."""
        if self.program is None:
            return 0.0
        return self.progress.rate.per_s() * samples_per_step(self.program.interface)

    def span_documents(self, limit: int | None) -> list[dict[str, Any]]:
        """Return the spans of the run, one document a process, for the timeline of the job."""
        own = span_document("CS system", self._spans, limit=limit)
        return [own, *read_part_spans(self._began_s, limit)]

    # The phases of a run

    async def load(
        self,
        program: CompiledStep,
        data: Mapping[str, bytes],
        share: SystemShare = ONE_WAFER,
    ) -> None:
        """Load a program with its executables' bytes by name; drop the previous one and close its input.

        Raises:
            ArtifactRefusedError: no engine takes the program, or its floorplan is invalid.
        """
        try:
            floorplan = read_floorplan(program.floorplan) if program.floorplan else None
        except FloorplanError as error:
            raise ArtifactRefusedError(f"artifact {program.key[:12]}: {error}") from error
        await self.close_input(None)
        self.program = None
        await self._on_device("load", self._make_engine, program, data, share)
        self.program, self.share, self.floorplan = program, share, floorplan

    async def program_device(self) -> float:
        """Compile the program for the device; return the seconds that it took."""
        engine = self._require_engine("program")
        fabric = "the" if self.program is None else self.program.fabric
        # CS-2 for the fabric cs2; other fabrics have their own names.
        self._log.info("Programming %s fabric", re.sub(r"^cs([0-9]+)$", r"CS-\1", fabric))
        seconds = await self._on_device("program", engine.program)
        self._log.info("Fabric programmed: this took %.1f seconds", seconds)
        return seconds

    async def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy part of the state to the device; call `end_state` after the last part."""
        engine = self._require_engine("put_state")
        await self._on_device("put_state", engine.put_state, state)

    def end_state(self) -> None:
        """Check that all of the state has been sent.

        Raises:
            StateMismatchError: some is missing.
        """
        engine = self._require_engine("put_state")
        if engine.missing_state:
            raise StateMismatchError.of(f"'{name}' is missing" for name in engine.missing_state)
        state = engine.interface.state
        total = sum(spec.nbytes for spec in state)
        self._log.info("state loaded: %d tensors, %.1f MB", len(state), total / 1e6)

    def state_groups(self, names: Sequence[str] | None, limit_bytes: int) -> list[list[str]]:
        """Group the names of the state, or of part of it, into chunks of about `limit_bytes`.

        A group has at least one name; an unknown name counts as 0 bytes.
        """
        sizes = {spec.name: spec.nbytes for spec in self._require_engine("fetch_state").interface.state}
        groups: list[list[str]] = []
        room = 0
        for name in sizes if names is None else names:
            size = sizes.get(name, 0)
            if not groups or size > room:
                groups.append([])
                room = limit_bytes
            groups[-1].append(name)
            room -= size
        return groups

    @asynccontextmanager
    async def snapshot(
        self, names: Sequence[str] | None
    ) -> AsyncIterator[Callable[[Sequence[str]], Awaitable[dict[str, np.ndarray]]]]:
        """Keep the state, or part of it, for the body; steps may run in the meantime.

        Yields:
            A function that reads some of it; each tensor can be read once.
        """
        async with self._reading:
            engine = self._require_engine("fetch_state")
            kept = await self._on_device("fetch_state", engine.snapshot, names)
            try:
                yield partial(asyncio.to_thread, kept.read)
            finally:
                # Also if the call is cancelled now: the next snapshot must not begin before this end, which
                # would discard it.
                end = asyncio.ensure_future(asyncio.to_thread(kept.end))
                try:
                    with contextlib.suppress(CsSystemError):
                        await asyncio.shield(end)
                except asyncio.CancelledError:
                    await asyncio.wait({end})
                    raise

    def open_input(
        self, num_workers: int, identity: InputIdentity, first_step: int, position: InputPosition
    ) -> None:
        """Open the data plane for the job's workers.

        Raises:
            InputRefusedError: no worker or shard, a negative step or position, or an input that cannot be
                streamed.
        """
        engine = self._require_engine("open_input")
        if self._ring is not None:
            raise WrongOrderError(
                "the input of this run is open already; load the program again to reopen it"
            )
        if min(num_workers, position.shards) < 1 or min(first_step, position.position) < 0:
            raise InputRefusedError(
                f"got {num_workers} workers and {position.shards} shards from step {first_step} and position "
                f"{position.position}, expected at least 1 of each from 0"
            )
        try:
            self._ring = self._receiver.open_run(
                RunSpec(
                    job_id=self.job,
                    token=self._token,
                    num_workers=num_workers,
                    layout=BatchLayout.of_step(engine.interface.inputs),
                    input_digest=identity.digest,
                    first_position=position.position,
                    shards=position.shards,
                    first_step=first_step,
                    digest=position.digest,
                    cursors=position.cursors,
                    schedule=position.schedule,
                    chunk_batches=engine.chunk_batches,
                    chunks=self._chunks,
                    reconnect_s=self._limits.reconnect_s,
                    liveness_s=self._limits.peer_timeout_s,
                ),
                self._spans,
            )
        except streaming_errors.StreamingError as error:
            raise InputRefusedError(f"the input cannot be opened: {error}") from error
        self.identity, self._mismatch = identity, None
        self.first_step, self.first_position = first_step, position
        self.progress = Progress(first_step)
        if self.program is not None:
            self.recorder.begin_input(samples_per_step(self.program.interface), step_traffic(self.program))
        engine.use_chunks(self._ring.memory)
        self._loop = StepLoop(engine, self._ring, self.progress, self._limits.input_patience_s, self._spans)
        self._log.info(
            "input open for %d worker(s) from step %d: %d chunks of %d batches",
            num_workers,
            first_step,
            self._chunks,
            engine.chunk_batches,
        )

    async def run_steps(
        self,
        steps: int,
        emit: Callable[[StepValues], None],
        stop: threading.Event,
        every: Mapping[str, int],
    ) -> bool:
        """Compute up to `steps` steps.

        Args:
            steps: Number of steps.
            emit: Called with the outputs, in the thread of the device.
            stop: When set, ends the steps at the next call to the device.
            every: Intervals of outputs, as in `StepLoop.run`.

        Returns:
            True if the input has ended.

        Raises:
            WorkerLostError: a worker is gone.
            InputFailedError: the input failed for another reason.
            CsSystemError: the device failed.
        """
        if self._loop is None:
            raise WrongOrderError(
                "run_steps before open_input; the order is load, program, put_state, open_input"
            )
        engine, loop = self._require_engine("run_steps"), self._loop

        def compute() -> bool:
            if engine.missing_state:
                raise WrongOrderError("run_steps without a state; put_state comes before the first step")
            return loop.run(steps, record, stop, every)

        def record(values: StepValues) -> None:
            self.recorder.add_steps(values.count, values.outputs, values.waited_s)
            emit(values)

        self._stops.add(stop)
        self._running_since = time.monotonic()
        try:
            return await self._on_device("run_steps", compute)
        except streaming_errors.StreamingError as error:
            raise convert_input_error(error) from error
        finally:
            self._stops.discard(stop)
            self._add_run_time()

    async def close_input(self, reason: str | None) -> None:
        """Close the data plane of this run; the workers get `reason`, or None for a normal end."""
        for stop in self._stops:
            stop.set()
        ring, self._ring = self._ring, None
        if ring is None:
            return
        self.recorder.end_input(ring.stats())
        self.identity = None
        self._loop = None
        self._log_end(reason)
        # In a thread, because it waits until the workers have closed their connections.
        await asyncio.to_thread(ring.close, reason)

    async def close(self, reason: str | None) -> None:
        """End the run and free the device; an operation that does not end soon is killed."""
        await self.close_input(reason)
        if self._current is not None:
            # A program may contain a loop that never ends, and nobody waits for the results any more.
            _, running = await asyncio.wait({self._current}, timeout=_OPERATION_END_S)
            if running:
                self._log.warning(
                    "%s has not ended after %g s: its processes are killed", self._operation, _OPERATION_END_S
                )
                await asyncio.to_thread(self._abort)
        await asyncio.get_running_loop().run_in_executor(self._device, self._end)
        remove_ended_parts()

    def _make_engine(self, program: CompiledStep, data: Mapping[str, bytes], share: SystemShare) -> None:
        self._free()
        size = ring_size(program.interface, self._limits.input_memory_bytes)
        memoryx = self._memoryx.limit_servers(share.weight_servers)
        self._engine = make_engine(
            program, data, size.chunk_batches, memoryx, share.wafers, self._host_pool, self._start_process
        )
        self._chunks = size.chunks

    def _start_process(self) -> EngineProcess:
        """Return the process of this run, a new one if it has crashed."""
        if self._process is None or not self._process.is_connected:
            self._end_process()
            try:
                self._process = self._engines.take()
            except OSError as error:
                raise EngineLostError.not_started("loading", error.strerror or str(error)) from None
        return self._process

    def _abort(self) -> None:
        """Kill the processes that the operation waits for."""
        engine, process = self._engine, self._process
        if engine is not None:
            engine.abort()
        elif process is not None:  # it does not take the program
            process.kill()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _end(self) -> None:
        try:
            self._free()
        finally:
            self._end_process()
            self._engines.prepare()

    def _free(self) -> None:
        if self._engine is not None:
            self._engine.free()
        self._engine = None
        self._loop = None

    def _log_end(self, reason: str | None) -> None:
        steps = self.progress.step - self.first_step
        if self.program is None or not steps:
            return
        samples = steps * samples_per_step(self.program.interface)
        self._add_run_time()
        self._log.info(
            "run %s: %d steps, %d samples in %.2f seconds, %.2f samples/second",
            "finished" if reason is None else "stopped",
            steps,
            samples,
            self._run_s,
            samples / max(self._run_s, 1e-9),
        )
        self._run_s = 0.0

    def _add_run_time(self) -> None:
        """Add the time of the running steps, or of those that have just ended, to that of the run."""
        now = time.monotonic()
        if self._running_since is not None:
            self._run_s += now - self._running_since
        self._running_since = None

    def _require_engine(self, operation: str) -> ExternalEngine:
        if self._engine is None:
            raise WrongOrderError(f"{operation} without an artifact; load comes first")
        return self._engine

    async def _on_device(self, name: str, function: Callable[..., T], *args: object) -> T:
        # The next call of a client that has just cancelled an operation may arrive before the cancellation.
        if self._current is not None:
            await asyncio.wait({self._current}, timeout=_OPERATION_END_S)
        if self._operation is not None:
            raise WrongOrderError(f"{name} while {self._operation} is running; wait for its end")
        self._operation, began_s = name, time.monotonic()
        self._current = future = asyncio.get_running_loop().run_in_executor(self._device, function, *args)

        def end_operation(future: asyncio.Future[T]) -> None:
            self._operation = self._current = None
            self._spans.add("operations", name.replace("_", " "), began_s, time.monotonic())
            if not future.cancelled():
                # Retrieves the error, which asyncio would report as unhandled if the caller is gone.
                future.exception()

        future.add_done_callback(end_operation)
        # Shielded, because the thread cannot be interrupted: it continues when the caller is cancelled.
        return await asyncio.shield(future)


def step_traffic(program: CompiledStep) -> StepTraffic:
    """Return the bytes between wafer and MemoryX in one step, from the schedule that both follow."""
    if not program.schedule:
        return StepTraffic()
    schedule = schedule_from_json(program.schedule)
    found, sizes = traffic(schedule), schedule.sizes
    return StepTraffic(
        sum(sizes[value] for values in found.to_wafer for value in values),
        sum(sizes[value] for values in found.to_memory for value in values),
    )


def _is_ready(worker: WorkerStats) -> bool:
    return worker.phase is WorkerPhase.ENDED or (worker.phase is WorkerPhase.CONNECTED and worker.batches > 0)


def _describe_wait(worker: WorkerStats) -> str:
    if worker.phase is WorkerPhase.ABSENT:
        return "not connected"
    if worker.phase is WorkerPhase.CONNECTED:
        given = f"after {worker.batches} batches" if worker.batches else "without a batch"
        return f"connected from {worker.host} {given}"
    return f"{worker.phase.value}: {worker.last_error}" if worker.last_error else worker.phase.value


def convert_input_error(error: streaming_errors.StreamingError) -> CsSystemError:
    """Convert an error of the data plane into the one that the chief gets."""
    if isinstance(error, streaming_errors.WorkerLostError):
        return WorkerLostError(str(error), worker=str(error.worker))
    if isinstance(error, streaming_errors.RefusedError):
        return InputMismatchError.of(str(error.worker), error.differences)
    if isinstance(error, streaming_errors.StallError):
        return InputFailedError(f"the input failed: {error}", worker=str(error.worker))
    if isinstance(error, streaming_errors.WorkerFailedError):
        text = f"{error}\n{error.detail}" if error.detail and error.detail not in str(error) else str(error)
        return InputFailedError(text, worker=str(error.worker))
    return InputFailedError(f"the input failed: {error}")
