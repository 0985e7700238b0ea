"""What the calls of a wafer give MemoryX, put to its place: of further micro-batches it is added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cs_system.memoryx.store import MappedTensors
from cs_toolkit.shards import Shard

Combine = Callable[[np.ndarray, np.ndarray, np.ndarray], object]

_COMBINED: Mapping[str, Combine] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
"""How shares of micro-batches are combined: two of them, and where the result goes."""


def is_first(shard: Shard, call: int) -> bool:
    """Whether a call computes the first micro-batch: its results replace those of the step before."""
    return call < len(shard.traffic.calls) // shard.schedule.micro.count


def put_results(shard: Shard, call: int, places: MappedTensors, results: Sequence[np.ndarray]) -> None:
    """Takes what a call gives: its share of a total, else the value itself.

    Args:
        shard: Of the step.
        call: Of the wafer.
        places: Of all that arrives in a step, by number.
        results: Of the call, in the order of the traffic.
    """
    totals = {} if is_first(shard, call) else shard.schedule.micro.totals
    for number, result in zip(shard.traffic.to_memory[call], results, strict=True):
        combine = _COMBINED.get(totals.get(number, ""))
        if combine is None:
            np.copyto(places[number], result)
        else:
            combine(places[number], result, places[number])
