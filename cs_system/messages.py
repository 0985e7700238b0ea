"""Plain values as protocol buffer messages, and back: compiled steps, input identities, tensors."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from cs_stream.order import InputPosition
from cs_system.authentication import TensorTags
from cs_system.errors import DeviceMemoryError, WireFormatError
from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit.execution_options import ONE_WAFER, SystemShare
from cs_toolkit.files import parse_json
from cs_toolkit.step import CompiledStep, Executable, StepInterface, TensorSpec


def step_to_wire(step: CompiledStep, share: SystemShare = ONE_WAFER) -> pb.ArtifactOffer:
    """Convert a step, and the part of the system that runs it, to the message in which a client offers it."""
    return pb.ArtifactOffer(
        key=step.key,
        fabric=step.fabric,
        execution=step.execution,
        interface=_interface_to_wire(step.interface),
        executables=[
            pb.Executable(
                name=executable.name,
                interface=_interface_to_wire(executable.interface),
                sha256=executable.sha256,
                size_bytes=executable.size_bytes,
            )
            for executable in step.executables
        ],
        schedule=step.schedule,
        num_csx=share.wafers,
        max_wgt_servers=share.weight_servers or 0,
        floorplan=step.floorplan,
    )


def share_from_wire(offer: pb.ArtifactOffer) -> SystemShare:
    """Convert the part of the system that a client asks for back."""
    return SystemShare(offer.num_csx or 1, offer.max_wgt_servers or None)


def step_from_wire(offer: pb.ArtifactOffer) -> CompiledStep:
    """Convert the message of a step back, without any checks."""
    return CompiledStep(
        key=str(offer.key),
        fabric=str(offer.fabric),
        execution=str(offer.execution),
        interface=_interface_from_wire(offer.interface),
        executables=tuple(
            Executable(
                str(executable.name),
                _interface_from_wire(executable.interface),
                str(executable.sha256),
                int(executable.size_bytes),
            )
            for executable in offer.executables
        ),
        schedule=str(offer.schedule),
        floorplan=str(offer.floorplan),
    )


def samples_per_step(interface: StepInterface) -> int:
    """Return the batch size: the leading dimension of the first input, or 1 if there is none."""
    shapes = [spec.shape for spec in interface.inputs]
    return shapes[0][0] if shapes and shapes[0] else 1


def state_problems(specs: Sequence[TensorSpec], got: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """List all differences between the specs of a state and the given (dtype, shape) by name."""
    expected = {spec.name: (spec.dtype, spec.shape) for spec in specs}
    problems = [f"'{name}' is missing" for name in expected if name not in got]
    problems += [f"'{name}' is not state of the program" for name in got if name not in expected]
    for name, (dtype, shape) in expected.items():
        if name not in got:
            continue
        got_dtype, got_shape = got[name]
        if (got_dtype, tuple(got_shape)) != (dtype, shape):
            problems.append(f"'{name}' is {got_dtype}{list(got_shape)}, expected {dtype}{list(shape)}")
    return problems


def _interface_to_wire(interface: StepInterface) -> pb.Interface:
    return pb.Interface(
        inputs=_specs_to_wire(interface.inputs),
        state=_specs_to_wire(interface.state),
        outputs=_specs_to_wire(interface.outputs),
        updated=interface.updated,
    )


def _interface_from_wire(interface: pb.Interface) -> StepInterface:
    return StepInterface(
        inputs=_specs_from_wire(interface.inputs),
        state=_specs_from_wire(interface.state),
        outputs=_specs_from_wire(interface.outputs),
        updated=tuple(str(name) for name in interface.updated),
    )


def _specs_to_wire(specs: Iterable[TensorSpec]) -> list[pb.TensorSpec]:
    return [pb.TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape) for spec in specs]


def _specs_from_wire(specs: Iterable[pb.TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(str(spec.name), str(spec.dtype), tuple(spec.shape)) for spec in specs)


@dataclass(frozen=True)
class InputIdentity:
    """The input of a run as a task sees it; all tasks of a job must agree on it before any batch is sent.

    Attributes:
        run: Number of the run among all runs of the program on the system, from 1: `train` and `evaluate`
            after it are 1 and 2. It distinguishes a worker that is ahead of the chief from one with another
            input.
        facts: Name -> text of properties that must be equal in all tasks, in the order in which differences
            are reported.
    """

    run: int
    facts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the facts, as the data plane compares them."""
        text = json.dumps(dict(self.facts), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, worker: InputIdentity) -> list[str]:
        """List the differences of a worker from the chief, whose identity this is; empty if they agree."""
        names = [*self.facts, *(name for name in worker.facts if name not in self.facts)]
        return [
            f"{name}: {worker.facts.get(name, 'nothing')} in the worker, "
            f"{self.facts.get(name, 'nothing')} in the chief"
            for name in names
            if worker.facts.get(name) != self.facts.get(name)
        ]


def identity_to_wire(identity: InputIdentity) -> pb.InputIdentity:
    """Convert an identity to its message."""
    facts = [pb.Fact(name=name, text=text) for name, text in identity.facts.items()]
    return pb.InputIdentity(run=identity.run, facts=facts)


def identity_from_wire(message: pb.InputIdentity) -> InputIdentity:
    """Convert the message of an identity back."""
    return InputIdentity(message.run, {str(fact.name): str(fact.text) for fact in message.facts})


def position_to_wire(position: InputPosition) -> pb.InputPosition:
    """Convert a place in an input to its message."""
    return pb.InputPosition(
        shards=position.shards,
        position=position.position,
        digest=position.digest,
        cursors=position.cursors,
        schedule=position.schedule,
    )


def position_from_wire(message: pb.InputPosition) -> InputPosition:
    """Convert the message of a place in an input back."""
    cursors = tuple(message.cursors)
    return InputPosition(message.shards, message.position, message.digest, cursors, message.schedule)


# Bytes of tensor data in a message. gRPC in Python is fastest near 1 MiB and collapses with tens of MiB.
CHUNK_BYTES = 1 << 20
# Limit of a message, with room for names and shapes in addition to the data.
MESSAGE_BYTES = 4 << 20
# Limit of tensors in a message, because their names take space too.
MAX_TENSORS = 2048

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64",
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}  # fmt: skip


def documents_from_wire(data: bytes) -> list[dict[str, Any]]:
    """Return the documents of spans (`cs_toolkit.spans`) in the answer of FetchSpans.

    Raises:
        WireFormatError: it is no list of JSON objects.
    """
    try:
        documents = parse_json(data)
    except ValueError as error:
        raise WireFormatError(f"the spans of the CS system: {error}") from None
    if not isinstance(documents, list) or not all(isinstance(each, dict) for each in documents):
        raise WireFormatError("the spans of the CS system: expected a list of JSON objects")
    return documents


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the numpy dtype for a name on the wire.

    Raises:
        WireFormatError: a dtype that cannot be sent.
    """
    try:
        return _DTYPES[name]
    except KeyError:
        raise WireFormatError(
            f"dtype '{name}' cannot be sent; expected one of {', '.join(_DTYPES)}"
        ) from None


def pack_tensors(
    tensors: Mapping[str, np.ndarray], tags: TensorTags, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[list[pb.TensorChunk]]:
    """Pack tensors into groups of chunks with at most `chunk_bytes` of data; no tensors give no group.

    The groups have to be made in the order in which they are sent, because of their digests.
    """
    group: list[pb.TensorChunk] = []
    room = chunk_bytes
    for name, array in tensors.items():
        dtype_named(array.dtype.name)
        flat = np.ascontiguousarray(array).reshape(-1)
        if flat.dtype.byteorder == ">" or (flat.dtype.byteorder == "=" and sys.byteorder == "big"):
            flat = flat.byteswap()
        data = flat.view(np.uint8).data
        offset = 0
        while offset < len(data) or offset == 0:
            part = data[offset : offset + room]
            chunk = pb.TensorChunk(name=name, offset=offset, data=bytes(part))
            if offset == 0:
                chunk.dtype = array.dtype.name
                chunk.shape.extend(array.shape)
            tags.add(chunk, part)
            group.append(chunk)
            room -= len(part)
            offset += len(part)
            # The limit on tensors keeps the names of many small ones from adding up to a huge message.
            if room == 0 or len(group) == MAX_TENSORS:
                yield group
                group, room = [], chunk_bytes
            if not data:
                break
    if group:
        yield group


class TensorAssembler:
    """Builds tensors from chunks in the order of `pack_tensors`.

    Args:
        tags: The digests of the chunks.
        accept: Called with (name, dtype, shape) before a tensor's memory is allocated; raises to refuse it.

    Attributes:
        complete_bytes: Size of the tensors that `take` would return.
    """

    def __init__(
        self, tags: TensorTags, accept: Callable[[str, str, tuple[int, ...]], None] | None = None
    ) -> None:
        self._tags, self._accept = tags, accept
        self._tensors: dict[str, np.ndarray] = {}
        self._names: set[str] = set()
        self._open: tuple[str, memoryview, int] | None = None
        self.complete_bytes = 0

    def add(self, chunks: Iterable[pb.TensorChunk]) -> None:
        """Add the chunks of a message.

        Raises:
            WireFormatError: a gap, an overlap, a part without its beginning, an unknown dtype.
            TensorDamagedError: a chunk was changed in transit.
        DeviceMemoryError: a tensor does not fit the memory.
        """
        for chunk in chunks:
            data = chunk.data
            self._tags.check(chunk, data)
            name, room, done = self._open or self._begin(chunk)
            if self._open is not None and (chunk.name != name or chunk.offset != done):
                raise WireFormatError(
                    f"expected byte {done} of tensor '{name}', got byte {chunk.offset} of '{chunk.name}'"
                )
            end = done + len(data)
            if end > len(room):
                raise WireFormatError(
                    f"tensor '{name}': got {end} bytes, its shape and dtype have {len(room)}"
                )
            room[done:end] = data
            self._open = None if end == len(room) else (name, room, end)
            self.complete_bytes += end if self._open is None else 0

    def _begin(self, chunk: pb.TensorChunk) -> tuple[str, memoryview, int]:
        name, shape = str(chunk.name), tuple(chunk.shape)
        if chunk.offset:
            raise WireFormatError(f"tensor '{name}' begins at byte {chunk.offset} instead of 0")
        if name in self._names:
            raise WireFormatError(f"tensor '{name}' came twice")
        if any(size < 0 for size in shape):
            raise WireFormatError(f"tensor '{name}': shape {shape} has a negative dimension")
        dtype = dtype_named(chunk.dtype)
        if self._accept is not None:
            self._accept(name, str(chunk.dtype), shape)
        try:
            array = np.empty(math.prod(shape), dtype)
        except (MemoryError, ValueError, OverflowError) as error:
            raise DeviceMemoryError(
                f"tensor '{name}' does not fit the memory of this machine: {error}"
            ) from None
        self._names.add(name)
        self._tensors[name] = array.reshape(shape)
        return name, array.view(np.uint8).data, 0

    def take(self) -> dict[str, np.ndarray]:
        """Return the tensors completed since the last call, by name, in the order of their arrival."""
        incomplete = self._open[0] if self._open is not None else None
        complete = {name: array for name, array in self._tensors.items() if name != incomplete}
        self._tensors = {name: array for name, array in self._tensors.items() if name == incomplete}
        self.complete_bytes = 0
        if sys.byteorder == "big":
            return {name: array.byteswap() for name, array in complete.items()}
        return complete

    def finish(self) -> dict[str, np.ndarray]:
        """Return the tensors that have not been taken, by name, in the order of their arrival.

        Raises:
            WireFormatError: the last tensor is not complete.
        """
        if self._open is not None:
            name, room, done = self._open
            raise WireFormatError(f"tensor '{name}' ended after {done} of {len(room)} bytes")
        return self.take()
