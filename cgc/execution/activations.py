"""How much memory the activations of a step have where weights stream, and what is told of the choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from cgc.errors import CompileError
from cgc.layers.micro.rewrite import NotSplitError
from cgc.layers.recompute import with_recomputed
from cgc.layers.streamed import StreamedStep, streamed_step
from cgc.layers.traffic import peak_bytes
from cs_toolkit.execution_options import Streaming, micro_batch_fault


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


@dataclass(frozen=True)
class Choice:
    """A step whose activations fit, where that can be.

    Attributes:
        step: in layers.
        recomputed: layers whose backward part computes the forward part again.
        not_cut: why the batch is computed at once although its activations do not fit; empty otherwise.
    """

    step: StreamedStep
    recomputed: frozenset[int]
    not_cut: str = ""

    @property
    def peak_bytes(self) -> int:
        """The most bytes of activations that wait at once, of all systems."""
        return peak_bytes(self.step.schedule)


def chosen_step(module: ModuleOp, whole: StreamedStep, limit: MemoryLimit, streaming: Streaming) -> Choice:
    """Chooses what is computed again, and the micro-batches of a training.

    Layers are computed again before a batch is cut, since weights come again for each micro-batch.

    Args:
        module: the step.
        whole: the same in layers, nothing computed again.
        limit: of the memory.
        streaming: what the user has decided.

    Raises:
        CompileError: micro-batches were asked for that cannot be.
    """
    size, batch_size = streaming.micro_batch_size, whole.batch_size
    if whole.program.mode != "train":
        return _with_recomputed(whole, limit, streaming)
    if size == "auto":
        return _fitting(module, _with_recomputed(whole, limit, streaming), limit, streaming)
    fault = micro_batch_fault(batch_size, streaming)
    if fault is not None:
        raise CompileError(fault)
    count = batch_size // (size * streaming.num_csx)
    try:
        step = streamed_step(module, micro_batches=count) if count > 1 else whole
    except NotSplitError as error:
        raise CompileError(
            f"micro_batch_size is {size}, but the batch of {batch_size} samples cannot be cut: {error}; "
            "leave micro_batch_size out, or change the model"
        ) from None
    return _with_recomputed(step, limit, streaming)


def _fitting(module: ModuleOp, choice: Choice, limit: MemoryLimit, streaming: Streaming) -> Choice:
    """The fewest micro-batches whose activations fit; as many as there are samples where none do."""
    needed = -(-choice.peak_bytes // max(1, limit.room_bytes))
    samples = choice.step.batch_size // streaming.num_csx
    for count in range(2, samples + 1):
        if choice.peak_bytes <= limit.room_bytes:
            break
        if samples % count or (count < needed and count < samples):
            continue
        try:
            step = streamed_step(module, micro_batches=count)
        except NotSplitError as error:
            return replace(choice, not_cut=str(error))
        choice = _with_recomputed(step, limit, streaming)
    return choice


def _with_recomputed(step: StreamedStep, limit: MemoryLimit, streaming: Streaming) -> Choice:
    return Choice(*with_recomputed(step, limit.room_bytes, streaming.recompute))


def activation_notices(choice: Choice, limit: MemoryLimit, streaming: Streaming) -> tuple[str, ...]:
    """What the user is told: nothing where activations fit as they are and nobody has decided anything."""
    step, count = choice.step, streaming.num_csx
    peak, room = choice.peak_bytes, limit.room_bytes
    is_untouched = streaming == Streaming(num_csx=count) and step.micro is None and not choice.recomputed
    if is_untouched and peak <= room:
        return ()
    layers = len(step.schedule.layers)
    again = f"{len(choice.recomputed):,} of {layers:,} layers are computed again in the backward pass"
    per_system = f"{_size(peak // count)} of activations wait at once{_each(count)}, {limit.source}"
    start = f"activations (recompute {streaming.recompute}): {again}; {_parts(step, streaming)}{per_system}"
    if peak <= room:
        return (start,)
    first = "say recompute: auto, or " if streaming.recompute == "none" else ""
    cut = f"; the batch cannot be cut into micro-batches: {choice.not_cut}" if choice.not_cut else ""
    return (f"{start}, which is too little: {first}take a smaller batch{cut}",)


def _parts(step: StreamedStep, streaming: Streaming) -> str:
    if step.micro is None:
        return ""
    size = step.program.batch_size // streaming.num_csx
    given = "auto" if streaming.micro_batch_size == "auto" else "as asked for"
    return (
        f"the batch goes through the layers in {step.micro_batches:,} micro-batches of {size:,} samples"
        f"{_each(streaming.num_csx)} ({given}); "
    )


def _each(count: int) -> str:
    return "" if count == 1 else f" in each of {count} systems"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes:,} bytes"
