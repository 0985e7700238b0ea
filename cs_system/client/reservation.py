"""A reservation of a CS system: its chief loads a program, sends state, runs steps, and fetches state."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, starmap
from types import TracebackType
from typing import Any, Self

import numpy as np

from cs_stream.order import START, InputPosition
from cs_stream.run_state import WorkerPhase
from cs_system.authentication import Call, CallSigner, TensorTags
from cs_system.client.connection import Connection
from cs_system.client.heartbeats import Heartbeats
from cs_system.errors import CsSystemError, StateMismatchError, TensorDamagedError, WrongOrderError
from cs_system.messages import (
    CHUNK_BYTES,
    InputIdentity,
    TensorAssembler,
    documents_from_wire,
    identity_to_wire,
    pack_tensors,
    position_from_wire,
    position_to_wire,
    state_problems,
    step_to_wire,
)
from cs_system.proto import cs_system_pb2 as pb
from cs_system.transport import Metadata, client_metadata
from cs_toolkit.execution_options import ONE_WAFER, SystemShare
from cs_toolkit.step import StepInterface, StepSource

log = logging.getLogger("cs_system.client")

_RELEASE_TIMEOUT_S = 15.0
_SPANS_TIMEOUT_S = 10.0
# For a single call that programs the device or moves a state; longer than the largest ones take.
_CALL_TIMEOUT_S = 4 * 3600.0

# A larger state is fetched tensor by tensor, a smaller one in a single call.
LARGE_STATE_BYTES = 1 << 30

OnWait = Callable[[str], object]


@dataclass(frozen=True)
class StepOutputs:
    """Outputs of consecutive steps.

    Attributes:
        first_step: Global step before the first of these steps, so the last one made it first_step + count.
        count: Number of steps.
        outputs: By output name, shape (count, *shape of the output); fewer rows for outputs that were
            requested for some steps only.
        samples: Total number of samples in these steps.
        began_s: When the device began the first of them, by a clock of the system.
        ended_s: When it finished the last one, by the same clock.
        waited_s: How long the device was idle before these steps for lack of a batch.
        position: Place in the input after the last step.
        shards: With the order first-ready, the shards of the steps (`cs_stream.order.pack_schedule`).
    """

    first_step: int
    count: int
    outputs: dict[str, np.ndarray]
    samples: int
    began_s: float = 0.0
    ended_s: float = 0.0
    waited_s: float = 0.0
    position: InputPosition = START
    shards: bytes = b""

    def time_of(self, step: int) -> float:
        """Return when global step `step`, one of these, ended, assuming that all took the same time."""
        return self.began_s + (self.ended_s - self.began_s) * (step - self.first_step) / self.count


class Reservation:
    """The system, held by this process. Made by `SystemClient.reserve`; close it, or use `with`.

    Every method raises ReservationLostError or SystemStoppingError when the reservation has ended, and
    ConnectionLostError when the system is gone.
    """

    def __init__(
        self,
        connection: Connection,
        lease: Any,
        reservation: str,
        signer: CallSigner,
        heartbeats: Heartbeats,
    ) -> None:
        self._connection, self._signer = connection, signer
        self._lease = lease
        self._id = reservation
        self._heartbeats = heartbeats
        heartbeats.sign = lambda request: self._sign("Heartbeat", request)[1]
        self._interface: StepInterface | None = None
        self._steps: StepStream | None = None
        self._closed = False

    def activity(self, text: str) -> AbstractContextManager[None]:
        """Name work of the body that needs no call of the system, such as `compiling`.

        Without it, the system would be released if the body takes long (`cs_system serve --idle-release-s`).
        """
        return self._heartbeats.activity(text)

    def load(self, source: StepSource, share: SystemShare = ONE_WAFER) -> None:
        """Load a compiled program into the system; send only the executables that it does not have yet.

        Args:
            source: The program.
            share: The part of the system that runs it.

        Raises:
            ArtifactRefusedError: the program is for another fabric or another engine, is too large, or
                arrived damaged; or the wafers cannot share its batch.
        """
        step = source.step
        needed = self._call("OfferArtifact", step_to_wire(step, share)).needed
        if needed:
            names = {executable.sha256: executable.name for executable in step.executables}
            # Read before the call: gRPC hides exceptions that are raised by an iterator of requests.
            data = {sha256: source.executable_bytes(names[sha256]) for sha256 in needed}
            self._call("UploadArtifact", chain.from_iterable(starmap(_artifact_chunks, data.items())))
        self._interface = step.interface

    def program(self) -> float:
        """Program the fabric: compile the executables for the device.

        Returns:
            Seconds that it took.

        Raises:
            ProgramError: an executable does not run on this system.
        """
        return float(self._call("Program", pb.ProgramRequest()).seconds)

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Send the whole state of the program, by resource name.

        Args:
            state: A dict is checked against the program before it is sent. From any other mapping each tensor
                is requested when it is sent, and the system checks it.

        Raises:
            StateMismatchError: names, dtypes or shapes differ from the program's; lists all differences.
            DeviceMemoryError: the state does not fit.
        """
        if self._interface is None:
            raise WrongOrderError("put_state without an artifact; load comes first")
        if isinstance(state, dict):
            state = {name: np.asarray(array) for name, array in state.items()}
            problems = state_problems(
                self._interface.state, {n: (a.dtype.name, a.shape) for n, a in state.items()}
            )
            if problems:
                raise StateMismatchError.of(problems)
        failures: list[Exception] = []
        try:
            self._end_steps()
            call, metadata = self._sign("PutState", None)
            chunks = _state_chunks(state, call.requested_tensors(), failures)
            self._connection.call("PutState", chunks, _CALL_TIMEOUT_S, metadata)
        except CsSystemError:
            if failures:
                raise failures[0] from None
            raise

    def open_input(
        self,
        num_workers: int,
        identity: InputIdentity,
        first_step: int,
        position: InputPosition | None = None,
    ) -> None:
        """Let the workers of the job connect.

        Args:
            num_workers: Number of workers.
            identity: The input's identity, which every worker must share.
            first_step: Number of batches that earlier runs consumed: the global step of a resumed run.
            position: Place in the input at which the run begins; None for that of an order with one shard a
                worker in which every step has used one position.

        Raises:
            InputRefusedError: the numbers are impossible.
        """
        self._call(
            "OpenInput",
            pb.OpenInputRequest(
                num_workers=num_workers,
                identity=identity_to_wire(identity),
                first_step=first_step,
                position=position_to_wire(position or InputPosition(num_workers, first_step)),
            ),
        )

    def wait_workers(
        self,
        timeout_s: float,
        on_progress: OnWait | None = None,
        on_absent: Callable[[list[int]], None] | None = None,
    ) -> None:
        """Wait until every worker has connected and its first batch is on the system.

        Args:
            timeout_s: Limit for all of them.
            on_progress: Called with a sentence whenever another worker is ready, and every two seconds.
            on_absent: Called then with the indices of the workers that have never connected. An exception
                that one of both raises ends the wait.

        Raises:
            WorkersTimeoutError: names the missing workers.
            InputMismatchError: a worker has another input.
            WorkerLostError, InputFailedError: a worker will not come.
        """
        began_s = time.monotonic()
        _, stream = self._stream("WatchInput", pb.WatchInputRequest(timeout_s=timeout_s))
        with self._connection.errors():
            for status in stream:
                if on_absent is not None:
                    absent = WorkerPhase.ABSENT.value
                    on_absent([each.worker for each in status.workers if each.phase == absent])
                if on_progress is None:
                    continue
                ready = len(status.workers) - len(status.waiting_for)
                text = f"{ready} of {len(status.workers)} workers ready"
                if status.missing:
                    waited_s = time.monotonic() - began_s
                    text += f", waiting for {status.missing} for {waited_s:.0f} s"
                    text += f"; the run ends after {timeout_s:g} s"
                on_progress(text)

    def run_steps(
        self, n: int, on_wait: OnWait | None = None, every: Mapping[str, int] | None = None
    ) -> StepStream:
        """Compute up to `n` steps; the outputs arrive while the steps run.

        Leaving the iteration early stops the system at the next call of its device, so it may be some steps
        further than the outputs that were read; see `info().run.step`.

        Args:
            n: Number of steps.
            on_wait: Called with a sentence every two seconds in which no step ends.
            every: By output name, an interval: the output is sent only for global steps that are multiples of
                it.

        Raises (while iterating):
            WorkerLostError, InputFailedError: after the outputs of all steps before.
            ExecutionError, DeviceMemoryError: the device failed and its state is lost.
        """
        if n < 1:
            raise WrongOrderError(f"run_steps: got {n} steps, expected at least 1")
        # No time limit, as steps may take days: the system limits its own wait for input, and keepalive
        # notices a system that is gone.
        request = pb.RunStepsRequest(steps=n, output_every=every)
        call, answers = self._stream("RunSteps", request, timeout_s=None)
        stream = StepStream(self._connection, answers, call.answered_tensors(), on_wait)
        self._steps = stream
        return stream

    def pause_steps(self) -> None:
        """End the running steps after those that the device has begun; without any it does nothing.

        It is meant for another thread than the one that reads the outputs: that thread's iteration ends
        early, with `paused` set, and `run_steps` resumes from there.
        """
        request = pb.PauseStepsRequest()
        self._connection.call("PauseSteps", request, metadata=self._sign("PauseSteps", request)[1])

    def fetch_spans(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Fetch the spans of the system's processes, one document each (`cs_toolkit.spans`).

        Any thread may call it, also while steps run.

        Args:
            limit: Number of newest spans of each process; None for all.
        """
        request = pb.FetchSpansRequest(limit=limit or 0)
        metadata = self._sign("FetchSpans", request)[1]
        chunks = self._connection.stream("FetchSpans", request, _SPANS_TIMEOUT_S, metadata)
        with self._connection.errors():
            data = b"".join(chunk.data for chunk in chunks)
        return documents_from_wire(data)

    def fetch_state(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Fetch the state, or some of it, after the last step; in the dtypes of the program's interface.

        If a tensor arrives damaged, all are fetched once more.

        Raises:
            TensorDamagedError: one has arrived damaged again.
            StateMismatchError: an unknown name.
            WrongOrderError: there is no state, because none was put or a failed step lost it.
        """
        if names is not None and not names:
            return {}
        try:
            return self._state_stream(names).read()
        except TensorDamagedError as error:
            log.warning("%s; it is fetched once more", str(error).partition(",")[0])
        return self._state_stream(names).read()

    def snapshot(self) -> StateStream | None:
        """Keep the state after the last step, to be read by another thread while further steps run.

        Returns:
            None if the state is large: read it with `state` between the steps instead.

        Raises:
            WrongOrderError: there is no state, because none was put or a failed step lost it.
        """
        return None if self._has_large_state() else self._state_stream(None)

    def _state_stream(self, names: Sequence[str] | None) -> StateStream:
        call, stream = self._stream("FetchState", pb.FetchStateRequest(names=names or ()))
        return StateStream(self._connection, stream, call.answered_tensors())

    def state(self) -> Mapping[str, np.ndarray]:
        """Return the state after the last step; a large one is fetched lazily, tensor by tensor."""
        if self._interface is None or not self._has_large_state():
            return self.fetch_state()
        return RemoteState(self, [spec.name for spec in self._interface.state])

    def _has_large_state(self) -> bool:
        state = () if self._interface is None else self._interface.state
        return sum(spec.nbytes for spec in state) > LARGE_STATE_BYTES

    def stop(self, reason: str | None) -> None:
        """Close the input: the workers get `reason`, or None for a normal end of the run."""
        self._call("StopRun", pb.StopRequest(reason=reason or ""))

    def close(self, reason: str | None = None) -> None:
        """Release the system; returns when the next job can have it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._heartbeats.close()
        # Cancelling the lease frees the system as well, but gives no answer to wait for.
        with contextlib.suppress(CsSystemError):
            self._end_steps()
            request = pb.StopRequest(reason=reason or "", release=True)
            self._connection.call("StopRun", request, _RELEASE_TIMEOUT_S, self._sign("StopRun", request)[1])
        self._lease.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            reason = None
        elif isinstance(error, KeyboardInterrupt):
            reason = "the chief was interrupted"
        else:
            text = str(error).partition("\n")[0]
            reason = f"the chief failed: {type(error).__name__}{text and ': '}{text}"
        self.close(reason)

    def _sign(self, rpc: str, request: Any) -> tuple[Call, Metadata]:
        call, proof = self._signer.sign(rpc, self._id, request)
        return call, client_metadata(self._id, proof)

    def _call(self, rpc: str, request: Any) -> Any:
        self._end_steps()
        return self._connection.call(rpc, request, _CALL_TIMEOUT_S, self._sign(rpc, request)[1])

    def _stream(self, rpc: str, request: Any, timeout_s: float | None = _CALL_TIMEOUT_S) -> tuple[Call, Any]:
        self._end_steps()
        call, metadata = self._sign(rpc, request)
        return call, self._connection.stream(rpc, request, timeout_s, metadata)

    def _end_steps(self) -> None:
        """Stop steps whose outputs nobody reads any more: the device does one thing at a time."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None


class StepStream(Iterator[StepOutputs]):
    """Iterator over the outputs of the running steps.

    Attributes:
        end_of_input: True if the input ended before the last step.
        paused: True if `pause_steps` ended the steps before the last one.
    """

    def __init__(
        self, connection: Connection, call: Any, tags: TensorTags, on_wait: OnWait | None = None
    ) -> None:
        self._tags = tags
        self.end_of_input = self.paused = False
        self._on_wait = on_wait
        self._connection = connection
        self._call = call
        self._ended = False

    def __next__(self) -> StepOutputs:
        assembler = TensorAssembler(self._tags)
        with self._connection.errors():
            while not self._ended:
                event = self._next_event()
                if event is None:
                    break
                assembler.add(event.span.outputs)
                if event.span.last:
                    span = event.span
                    return StepOutputs(
                        span.first_step,
                        span.count,
                        assembler.finish(),
                        span.samples,
                        span.began_s,
                        span.ended_s,
                        span.waited_s,
                        position_from_wire(span.position),
                        span.shards,
                    )
        raise StopIteration

    def _next_event(self) -> pb.RunEvent | None:
        try:
            while (kind := (event := next(self._call)).WhichOneof("event")) in ("waiting", "news"):
                if kind == "news":
                    log.warning("%s", event.news)
                elif self._on_wait is not None:
                    self._on_wait(event.waiting)
        except BaseException:
            self._ended = True
            raise
        if kind == "span":
            return event
        self.end_of_input, self.paused = event.end.end_of_input, event.end.paused
        self._ended = True
        # Reads the status of the call, so that gRPC releases all of its resources.
        next(self._call, None)
        return None

    def close(self) -> None:
        """Stop the steps."""
        if not self._ended:
            self._ended = True
            self._call.cancel()


class StateStream:
    """The state after a step, on its way from the system, which keeps it from the moment this is constructed.

    Raises (also in `read`): the same errors as `Reservation.fetch_state`.
    """

    def __init__(self, connection: Connection, call: Any, tags: TensorTags) -> None:
        self._connection, self._call, self._tags = connection, call, tags
        with connection.errors():
            next(self._call)

    def read(self) -> dict[str, np.ndarray]:
        """Wait for all of the state and return it, in the dtypes of the program's interface."""
        assembler = TensorAssembler(self._tags)
        with self._connection.errors():
            for chunk in self._call:
                assembler.add(chunk.tensors)
        return assembler.finish()


class RemoteState(Mapping[str, np.ndarray]):
    """The state of a system that is not running steps; each tensor is fetched when it is accessed."""

    def __init__(self, reservation: Reservation, names: Sequence[str]) -> None:
        self._reservation, self._names = reservation, names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise KeyError(name)
        return self._reservation.fetch_state([name])[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _state_chunks(
    state: Mapping[str, np.ndarray], tags: TensorTags, failures: list[Exception]
) -> Iterator[pb.StateChunk]:
    """Yield the messages of a state; a failure ends it and is appended, as gRPC hides exceptions."""
    try:
        for group in pack_tensors(state, tags):
            yield pb.StateChunk(tensors=group)
    except Exception as error:
        failures.append(error)


def _artifact_chunks(sha256: str, data: bytes) -> Iterator[pb.ArtifactChunk]:
    for offset in range(0, len(data), CHUNK_BYTES):
        yield pb.ArtifactChunk(sha256=sha256, data=data[offset : offset + CHUNK_BYTES])
