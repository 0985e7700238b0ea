"""The process of an engine: it imports JAX, and computes for the CS system that has started it."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from cs_stream.batches import BatchLayout, RingMemory
from cs_system.engine.base import Engine, KeptState, PendingSteps
from cs_system.engine.device import compiler_options, start_device
from cs_system.engine.machine import limit_threads
from cs_system.engine.pipelined import PipelinedEngine
from cs_system.errors import CsSystemError, WrongOrderError, unexpected_error
from cs_system.memoryx.config import MemoryxAddress, MemoryxConfig
from cs_system.memoryx.engine import StreamedEngine
from cs_system.messages import step_from_wire
from cs_system.proto import cs_system_pb2 as pb
from cs_system.server.engine_channel import EngineChannel, Frame, FrameType
from cs_toolkit.layered_step import schedule_from_json
from cs_toolkit.network.connection import PeerGoneError
from cs_toolkit.step import CompiledStep, StepInterface, TensorSpec

log = logging.getLogger("cs_system.server")

_STATUS_EVERY_S = 0.5

# Queued steps: number of the request, and the steps.
_Pending = tuple[int, PendingSteps]


def serve(
    threads: int, cache_dir: Path | None, logs_device: bool, channel: int, reader: int, descriptors: int
) -> int:
    """Start the device, and serve engines until the CS system disconnects; return the exit code.

    Args:
        threads: Number of compute threads.
        cache_dir: Directory of compiled programs; None stores nothing.
        logs_device: Whether to log the device.
        channel: Descriptor of the connection for requests.
        reader: Descriptor of the connection for snapshots.
        descriptors: Descriptor of the connection for descriptors.
    """
    faulthandler.enable()
    count = limit_threads(threads)
    try:
        platform = start_device(cache_dir)
        compiler_options(count)
        _warm_up()
    except Exception as error:
        # Reported to the chief when its program fails to compile.
        log.error("the device failed to start: %s", error)
    else:
        if logs_device:
            log.info("device: %s, %d thread(s)", platform, count)
    server = _EngineServer(EngineChannel(socket.socket(fileno=channel)), socket.socket(fileno=descriptors))
    snapshots = EngineChannel(socket.socket(fileno=reader))
    threading.Thread(target=server.serve_snapshots, args=(snapshots,), daemon=True).start()
    with contextlib.suppress(PeerGoneError):
        server.serve()
    return 0


def _warm_up() -> None:
    """Run a small program: the first program of a process takes 0.2 s of CPU time more than later ones."""
    number = TensorSpec("number", "float32", ())

    def step(state: Any, inputs: Any) -> Any:
        return (state[0] + inputs[0],), (state[0] * 2,)

    jit: Callable[..., Any] = jax.jit
    struct: Callable[..., Any] = jax.ShapeDtypeStruct
    shape = struct(number.shape, np.float32)
    data = export.export(jit(step), platforms=("cpu", "cuda"))((shape,), (shape,)).serialize()
    engine = PipelinedEngine(bytes(data), StepInterface((number,), (number,), (number,), (number.name,)), 1)
    engine.put_state({number.name: np.zeros((), np.float32)})
    engine.run([np.zeros(1, np.float32)], 0, 1)


def make_engine(
    step: CompiledStep, data: Mapping[str, bytes], chunk_batches: int, memoryx: MemoryxConfig
) -> PipelinedEngine | StreamedEngine:
    """Make the engine of a step for one wafer, in this process; `engines.check_step` has checked the step.

    Args:
        step: The step to run.
        data: Bytes of its executables, by their names.
        chunk_batches: Number of batches stacked in a chunk.
        memoryx: Where the weights of weight streaming are stored.
    """
    if step.execution == "pipelined":
        (executable,) = step.executables
        return PipelinedEngine(data[executable.name], step.interface, chunk_batches, executable.name)
    return StreamedEngine(step, schedule_from_json(step.schedule), data, memoryx)


class _EngineServer:
    """Answers the requests of a CS system.

    Requests are handled in their order by one thread; another one waits for steps and sends their outputs, so
    that further steps can be dispatched in the meantime.
    """

    def __init__(self, channel: EngineChannel, descriptors: socket.socket) -> None:
        self._channel, self._descriptors = channel, descriptors
        self._engine: Engine | None = None
        self._ring: RingMemory | None = None
        self._kept: KeptState | None = None
        self._pending: queue.Queue[_Pending] = queue.Queue()
        self._handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.LOAD: self._load,
            FrameType.PROGRAM: self._program,
            FrameType.PUT: self._put,
            FrameType.CHUNKS: self._map_chunks,
            FrameType.STEPS: self._dispatch,
            FrameType.KEEP: self._keep,
            FrameType.FREE: self._free,
        }
        for body in (self._send_outputs, self._send_status):
            threading.Thread(target=body, daemon=True).start()

    def serve(self) -> None:
        """Handle requests until the CS system disconnects.

        Raises:
            PeerGoneError: it has.
        """
        while True:
            frame = self._channel.receive()
            if frame.type is not FrameType.STEPS:
                self._pending.join()  # answers are sent in the order of the requests
            with self._failures(self._channel, frame.number):
                self._handlers[frame.type](frame)

    def serve_snapshots(self, channel: EngineChannel) -> None:
        """Handle requests on the connection for snapshots, until the CS system disconnects."""
        with contextlib.suppress(PeerGoneError):
            while True:
                frame = channel.receive()
                with self._failures(channel, frame.number):
                    kept = self._kept
                    if kept is None:
                        raise WrongOrderError("there is no snapshot of the state")
                    if frame.type is FrameType.READ:
                        names = list(frame.values["names"])
                        state = kept.read(names)
                        channel.send_tensors(FrameType.STATE, frame.number, [state[name] for name in names])
                    else:
                        kept.end()
                        channel.send(FrameType.DONE, frame.number)

    # Requests

    def _load(self, frame: Frame) -> None:
        message, *executables = self._channel.receive_bytes(frame, frame.values["sizes"])
        step = step_from_wire(pb.ArtifactOffer.FromString(message))
        data = {spec.name: content for spec, content in zip(step.executables, executables, strict=True)}
        place = dict(frame.values["memoryx"])
        place["directory"] = Path(place["directory"])
        place["secret_file"] = place["secret_file"] and Path(place["secret_file"])
        place["addresses"] = tuple(MemoryxAddress(*each) for each in place["addresses"])
        self._engine = make_engine(step, data, frame.values["chunk_batches"], MemoryxConfig(**place))

    def _program(self, frame: Frame) -> None:
        self._loaded().program()
        self._send_done(frame)

    def _put(self, frame: Frame) -> None:
        if self._engine is None:
            self._channel.receive_bytes(frame, [frame.nbytes])  # the next frame follows it
        engine = self._loaded()
        specs = {spec.name: spec for spec in engine.interface.state}
        engine.put_state(
            self._channel.receive_tensors(frame, [specs[name] for name in frame.values["names"]])
        )
        self._send_done(frame)

    def _map_chunks(self, frame: Frame) -> None:
        _, (descriptor,), *_ = socket.recv_fds(self._descriptors, 1, 1)
        self._drop_ring()
        layout = BatchLayout.from_json(frame.values["layout"])
        self._ring = RingMemory(layout, frame.values["chunk_batches"], frame.values["chunks"], descriptor)

    def _dispatch(self, frame: Frame) -> None:
        engine = self._loaded()
        if self._ring is None:
            raise WrongOrderError("there is no input")
        chunk, offset, count = frame.numbers
        steps = engine.dispatch(self._ring.chunks[chunk], offset, count)
        # Short steps have been computed by the call that dispatches them; another thread would cost 0.1 ms.
        if not self._pending.unfinished_tasks and steps.is_ready():
            self._send_outputs_of(frame.number, steps)
        else:
            self._pending.put((frame.number, steps))

    def _keep(self, frame: Frame) -> None:
        self._kept = self._loaded().snapshot(frame.values["names"])
        self._send_done(frame)

    def _free(self, frame: Frame) -> None:
        engine, self._engine, self._kept = self._engine, None, None
        if engine is not None:
            engine.free()
        self._drop_ring()
        self._channel.send(FrameType.DONE, frame.number, {"missing": []})

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise WrongOrderError("there is no program")
        return self._engine

    def _drop_ring(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()

    # Answers

    def _send_done(self, frame: Frame) -> None:
        self._channel.send(FrameType.DONE, frame.number, {"missing": self._missing_state()})

    def _missing_state(self) -> list[int]:
        engine = self._engine
        if engine is None:
            return []
        missing = set(engine.missing_state)
        return [index for index, spec in enumerate(engine.interface.state) if spec.name in missing]

    def _send_outputs(self) -> None:
        """Send the outputs of steps in their order."""
        while True:
            number, steps = self._pending.get()
            try:
                with contextlib.suppress(ConnectionError), self._failures(self._channel, number):
                    self._send_outputs_of(number, steps)
            finally:
                self._pending.task_done()

    def _send_outputs_of(self, number: int, steps: PendingSteps) -> None:
        outputs = steps.wait()
        arrays = [outputs[spec.name] for spec in self._loaded().interface.outputs]
        self._channel.send_tensors(FrameType.OUTPUTS, number, arrays)

    def _send_status(self) -> None:
        """Send changes of the text about a part that does not answer."""
        sent, has_ended = None, threading.Event()
        with contextlib.suppress(ConnectionError):
            while not has_ended.wait(_STATUS_EVERY_S):
                engine = self._engine
                text = None if engine is None else engine.unresponsive()
                if text != sent:
                    self._channel.send(FrameType.STATUS, 0, {"text": text or ""})
                    sent = text

    @contextlib.contextmanager
    def _failures(self, channel: EngineChannel, number: int) -> Iterator[None]:
        """Send an error of the body as the answer to a request."""
        try:
            yield
        except ConnectionError:
            raise
        except CsSystemError as error:
            self._send_failure(channel, number, error)
        except Exception as error:
            log.exception("internal error of an engine")
            self._send_failure(channel, number, unexpected_error("an engine", error))

    def _send_failure(self, channel: EngineChannel, number: int, error: CsSystemError) -> None:
        values = {"code": error.code, "message": str(error), "fields": error.fields}
        channel.send(FrameType.FAILED, number, {**values, "missing": self._missing_state()})
