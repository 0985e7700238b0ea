"""Traffic and peak memory of a step in layers, in bytes, computed from the schedule only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cs_toolkit.layered_step import SMALL_BYTES, Call, Schedule


@dataclass(frozen=True)
class LayerTraffic:
    """Bytes of one layer in a step.

    Attributes:
        weights: sent to the wafer for the forward part.
        backward_weights: sent again for the backward part.
        gradients: sent from the wafer.
        stash: activations that the forward part stores for a backward part.
        update: state and gradients that the update of the layer reads and writes.
    """

    weights: int
    backward_weights: int
    gradients: int
    stash: int
    update: int


def layer_traffic(schedule: Schedule) -> tuple[LayerTraffic, ...]:
    """Return the traffic of every layer, in the order of the forward pass."""
    state = frozenset(schedule.state.values())
    size = schedule.sizes
    backward = {value for layer in schedule.layers if layer.backward for value in layer.backward.arguments}
    updated = {value for call in schedule.update_calls() for value in call.arguments}

    def total(values: Iterable[int]) -> int:
        return sum(size[value] for value in values if size[value] > SMALL_BYTES)

    found = []
    for layer in schedule.layers:
        wafer_calls = [call for call in (layer.forward, layer.backward) if call]
        results = {value for call in wafer_calls for value in call.results}
        found.append(
            LayerTraffic(
                weights=total(_arguments(layer.forward) & state),
                backward_weights=total(_arguments(layer.backward) & state),
                gradients=total(results & updated),
                stash=total((set(layer.forward.results) & backward) if layer.forward else ()),
                update=total(
                    number
                    for update in layer.updates()
                    for number in (*dict.fromkeys(update.arguments), *update.results)
                ),
            )
        )
    return tuple(found)


def peak_bytes(schedule: Schedule) -> int:
    """Return the peak bytes of activations on the wafer: results of a call that a later call reads."""
    size, calls = schedule.sizes, list(schedule.wafer_calls())
    last_use = {value: index for index, call in enumerate(calls) for value in call.arguments}
    state = frozenset(schedule.state.values())
    freed_after: dict[int, list[int]] = {}
    live = peak = 0
    for index, call in enumerate(calls):
        for value in call.results:
            if last_use.get(value, -1) > index and value not in state:
                live += size[value]
                freed_after.setdefault(last_use[value], []).append(value)
        peak = max(peak, live)
        live -= sum(size[value] for value in freed_after.pop(index, ()))
    return peak


def _arguments(call: Call | None) -> frozenset[int]:
    return frozenset(call.arguments) if call else frozenset()
