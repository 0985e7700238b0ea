"""Samplers: on what their order depends, and how long it is."""

from __future__ import annotations

import time
from collections.abc import Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler

from input_analyzer.torch import global_random
from input_analyzer.torch.generators import SEED, states_of_process
from input_analyzer.torch.loader import Parts
from input_analyzer.torch.records import LONGEST_S, RECORDS, digest

_COUNTED_S = 1.0
_MOST_INDICES = 200_000


def order_draws(order: Any) -> tuple[str, ...] | None:
    """Generators of the process on whose numbers an order depends: "random", "numpy.random", "torch".

    Where it begins is read several times. Numbers that are drawn, and change nothing, do not count.

    Args:
        order: A sampler, or a batch sampler.

    Returns:
        None where the order changes by itself, or comes too slowly.
    """
    began = time.monotonic()
    first, drawn = _order_after(order, SEED)
    if time.monotonic() - began > LONGEST_S or _order_after(order, SEED)[0] != first:
        return None
    return drawn if any(_order_after(order, SEED + step)[0] != first for step in (1, 2)) else ()


def _order_after(order: Any, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where an order begins after a seed, as digests, and the generators that were drawn from."""
    with global_random.anew(seed):
        before = states_of_process()
        found = tuple(digest(index) for index in islice(iter(order), RECORDS))
        after = states_of_process()
    return found, tuple(name for name in before if before[name] != after[name])


def length_by_reading(order: Any, most: int) -> tuple[int, bool]:
    """Indices of an order up to so many, as many as come in a second, and whether these are all of them."""
    read = 0
    with global_random.anew(SEED):
        end = time.monotonic() + _COUNTED_S
        for read, _ in enumerate(islice(iter(order), most), 1):
            if time.monotonic() > end:
                return read, False
    return read, read < most


def batch_sizes(batches: Any) -> tuple[int, ...]:
    """How many indices batches of a batch sampler have: of those that come in a second, each size once."""
    found: set[int] = set()
    with global_random.anew(SEED):
        end = time.monotonic() + _COUNTED_S
        for batch in islice(iter(batches), _MOST_INDICES):
            if not isinstance(batch, Sized):
                return ()
            found.add(len(batch))
            if time.monotonic() > end:
                break
    return tuple(sorted(found))


@dataclass(frozen=True)
class Indices:
    """Indices of an epoch in their order, and whether these are all."""

    first: tuple[Any, ...]
    whole: bool


def indices_of(parts: Parts) -> Indices | None:
    """The indices of an epoch, as many as come in time; None where they are other things than indices."""
    found: list[Any] = []
    whole = True
    end = time.monotonic() + LONGEST_S
    try:
        for one in parts.order:
            found += one if isinstance(one, list | tuple) else (one,)
            if len(found) >= _MOST_INDICES or time.monotonic() > end:
                whole = False
                break
    except (TypeError, ValueError):
        return None
    if not all(isinstance(index, int | str) for index in found):
        return None
    return Indices(tuple(found), whole)


def reads_all(order: Any) -> bool:
    """Whether a sampler gives every index of its dataset once."""
    if type(order) is RandomSampler:
        return not order.replacement and order._num_samples is None
    return type(order) is SequentialSampler
