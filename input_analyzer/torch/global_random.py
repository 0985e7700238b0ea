"""The random numbers that everything in a process shares: those of Python, NumPy and torch."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch

_NUMPY_SEEDS = 2**32

States = dict[str, Any]
"""By the name of a generator its state."""


def states() -> States:
    """The states of all three."""
    return {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }


def restore(found: States) -> None:
    """Puts them back."""
    random.setstate(found["random"])
    np.random.set_state(found["numpy.random"])
    torch.set_rng_state(found["torch"])


def begin(seed: int) -> None:
    """Begins all of them anew."""
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    _begin_torch(seed)


def _begin_torch(seed: int) -> None:
    # torch.manual_seed() writes the whole stack down for each device that is not used yet, and keeps that.
    torch.default_generator.manual_seed(seed)


@contextmanager
def anew(seed: int) -> Iterator[None]:
    """All of them begun anew for so long: an order of another loader is not to repeat."""
    before = states()
    begin(seed)
    try:
        yield
    finally:
        restore(before)


def fingerprint(state: Any) -> str:
    """A short text that differs where the state of a generator does."""
    value = state.numpy() if isinstance(state, torch.Tensor) else state
    return hashlib.blake2b(pickle.dumps(value), digest_size=16).hexdigest()


class OwnChance:
    """Random numbers that an order has for itself: what else is drawn in the process does not change them.

    Every epoch has others, and they follow from the seed, or from the state in which the process was when the
    first epoch began: where that is the same in several processes, they are.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._first: States | None = None

    def records(self, made: Any, seed: int | None, ahead: int) -> Iterator[Any]:
        """The records of an epoch.

        Args:
            made: Called for an iterator over them.
            seed: Of all epochs; None: the state of the process is taken.
            ahead: So many are made at a time, as changing the random numbers takes about 0.1 ms.
        """
        records: Iterator[Any] | None = None
        inside: States = {}
        while True:
            outside = states()
            try:
                if records is None:
                    self._begin(seed)
                    records = iter(made())
                else:
                    restore(inside)
                chunk = list(islice(records, ahead))
                inside = states()
            finally:
                restore(outside)
            yield from chunk
            if len(chunk) < ahead:
                return

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            begin(seed + self._epoch)
        elif self._first is None:
            self._first = states()
        else:
            # Each from its own: what a user's worker_init_fn has made the same in all workers stays so.
            of = {name: int(fingerprint(state), 16) + self._epoch for name, state in self._first.items()}
            random.seed(of["random"])
            np.random.seed(of["numpy.random"] % _NUMPY_SEEDS)
            _begin_torch(of["torch"] % 2**63)
        self._epoch += 1
