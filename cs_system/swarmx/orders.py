"""What the CS system tells the wafers of a group before the first step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from cs_system.messages import step_from_wire, step_to_wire
from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit.step import CompiledStep


@dataclass(frozen=True)
class Order:
    """The place of a wafer in its group, and what it computes; executables follow in the order of the step.

    Attributes:
        rank: of the wafer, from 0; the first one sends gradients.
        count: of wafers.
        coordinator: HOST:PORT where their processes meet.
        memoryx: host and port of each MemoryX.
        token: by which the others join the first one there.
    """

    rank: int
    count: int
    coordinator: str
    memoryx: tuple[tuple[str, int], ...]
    token: str

    def to_bytes(self, step: CompiledStep) -> bytes:
        """As bytes, with the step."""
        head = json.dumps(asdict(self)).encode()
        body: bytes = step_to_wire(step).SerializeToString()
        return len(head).to_bytes(4, "little") + head + body

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[Order, CompiledStep]:
        """The inverse of `to_bytes`."""
        end = 4 + int.from_bytes(data[:4], "little")
        fields = json.loads(data[4:end])
        order = cls(**{**fields, "memoryx": tuple((host, port) for host, port in fields["memoryx"])})
        return order, step_from_wire(pb.ArtifactOffer.FromString(data[end:]))


def cut_inputs(step: CompiledStep) -> tuple[bool, ...]:
    """Of each tensor of a batch whether it is cut along its samples."""
    inputs = step.interface.inputs
    samples = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    return tuple(bool(spec.shape) and spec.shape[0] == samples for spec in inputs)
