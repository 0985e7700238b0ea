"""How much memory the activations of a step have where weights stream, and what is told of the choice."""

from __future__ import annotations

from dataclasses import dataclass

from cgc.layers.streamed import StreamedStep
from cgc.layers.traffic import peak_bytes
from cs_toolkit.streaming import Streaming


@dataclass(frozen=True)
class MemoryLimit:
    """Memory for the activations of a batch.

    Attributes:
        room_bytes: of all systems that share the batch.
        source: in words, what limits it.
    """

    room_bytes: int
    source: str


def memory_limit(wafer_bytes: int, streaming: Streaming) -> MemoryLimit:
    """What the activations of a batch may take: the samples, and with them the activations, are shared.

    Args:
        wafer_bytes: what one wafer has room for.
        streaming: what the user has decided.
    """
    count, given = streaming.num_csx, streaming.max_act_bytes
    if given is None or given > wafer_bytes:
        return MemoryLimit(count * wafer_bytes, f"the wafer{_each(count)} has room for {_size(wafer_bytes)}")
    return MemoryLimit(count * given, f"max_act_per_csx allows {_size(given)}{_each(count)}")


def activation_notices(
    step: StreamedStep, recomputed: frozenset[int], limit: MemoryLimit, streaming: Streaming
) -> tuple[str, ...]:
    """What the user is told: nothing where activations fit as they are and nobody has decided anything."""
    untouched = Streaming(num_csx=streaming.num_csx)
    peak, room = peak_bytes(step.schedule), limit.room_bytes
    if streaming == untouched and not recomputed and peak <= room:
        return ()
    layers = len(step.schedule.layers)
    again = f"{len(recomputed):,} of {layers:,} layers are computed again in the backward pass"
    count = streaming.num_csx
    per_system = f"{_size(peak // count)} of activations wait at once{_each(count)}, {limit.source}"
    start = f"activations (recompute {streaming.recompute}): {again}; {per_system}"
    if peak <= room:
        return (start,)
    first = "say recompute: auto, or " if streaming.recompute == "none" else ""
    return (f"{start}, which is too little: {first}take a smaller batch",)


def _each(count: int) -> str:
    return "" if count == 1 else f" in each of {count} systems"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes:,} bytes"
