"""Which layers compute their forward part again in the backward pass, so that a step fits the memory."""

from __future__ import annotations

from cgc.layers.streamed import StreamedStep, recomputing
from cgc.layers.traffic import peak_bytes
from cs_toolkit.execution_options import Recompute
from cs_toolkit.layered_step import Schedule


def with_recomputed(
    step: StreamedStep, room_bytes: int, recompute: Recompute
) -> tuple[StreamedStep, frozenset[int]]:
    """A step with those layers computed again that were asked for, and these layers.

    Args:
        step: a step where no layer is computed again.
        room_bytes: what there is for activations.
        recompute: "auto" for as few as let the activations fit.
    """
    if recompute == "none":
        return step, frozenset()
    return fitting_step(step, room_bytes if recompute == "auto" else -1)


def fitting_step(step: StreamedStep, room_bytes: int) -> tuple[StreamedStep, frozenset[int]]:
    """A step with as few layers computed again as let its activations fit, and these layers.

    Args:
        step: a step where no layer is computed again.
        room_bytes: what there is for activations; where they never fit, all layers are computed again.
    """
    target = room_bytes
    while True:
        recomputed = layers_to_recompute(step.schedule, target)
        found = recomputing(step, recomputed) if recomputed else step
        excess = peak_bytes(found.schedule) - room_bytes
        if excess <= 0 or target < 0:
            return found, recomputed
        target -= excess  # what a layer saves is known when the others are chosen


def layers_to_recompute(schedule: Schedule, room_bytes: int) -> frozenset[int]:
    """The fewest layers that, computed again in the backward pass, let the activations of a step fit.

    Args:
        schedule: of the step where no layer is computed again.
        room_bytes: what there is for activations; with less than none all layers are chosen.

    Returns:
        Layers, those first that keep the most; all that keep anything where it never fits.
    """
    missing = peak_bytes(schedule) - room_bytes
    saved = _saved_bytes(schedule)
    chosen = set()
    for index in sorted(saved, key=lambda index: (-saved[index], index)):
        if missing <= 0:
            break
        chosen.add(index)
        missing -= saved[index]
    return frozenset(chosen)


def _saved_bytes(schedule: Schedule) -> dict[int, int]:
    """By layer what recomputing it saves: all that its forward part keeps but the input of the next layer."""
    size = schedule.sizes
    backward = {value for layer in schedule.layers if layer.backward for value in layer.backward.arguments}
    forward = {value for layer in schedule.layers if layer.forward for value in layer.forward.arguments}
    saved = {}
    for index, layer in enumerate(schedule.layers):
        if layer.forward and layer.backward:
            kept = set(layer.forward.results) & backward - forward
            saved[index] = sum(size[value] for value in kept)
    return {index: count for index, count in saved.items() if count}
