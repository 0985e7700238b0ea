"""Seeds, and the state of random number generators while the input is read."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

from cstorch.program import configuration

_MAX_STEP_SEED = 2**31 - 1

States = tuple[Any, np.random.BitGenerator, torch.Tensor]
"""The states of the generators of Python, NumPy and PyTorch."""


def manual_seed(seed: int) -> torch.Generator:
    """Seed PyTorch on this CPU, and the random operations of steps that are recorded later."""
    return torch.manual_seed(seed)


def program_seed() -> int:
    """Return the seed that the program has given PyTorch; 0 if it has given none."""
    # PyTorch seeds itself with 64 random bits, which a process that resumes from a checkpoint would not
    # have. Seeds of programs are shorter.
    seed = torch.initial_seed()
    return seed if seed < 2**32 else 0


def seed_of_steps() -> int:
    """Return the seed of random operations on the system: the configured one, else that of the program."""
    configured = configuration().seed
    return (program_seed() if configured is None else configured) & _MAX_STEP_SEED


class RandomState:
    """Separate random number generators with a seed: the program's generators do not advance in the body."""

    def __init__(self, seed: int) -> None:
        self._program = _get_state()
        # The bit generator itself: copying NumPy's state would take as long as making a small batch.
        self._own: States = random.Random(seed).getstate(), np.random.MT19937(), torch.get_rng_state()
        with self:
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)

    def __enter__(self) -> None:
        self._program = _get_state()
        _set_state(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = _get_state()
        _set_state(self._program)


def _get_state() -> States:
    return random.getstate(), mtrand.get_bit_generator(), torch.get_rng_state()


def _set_state(states: States) -> None:
    random.setstate(states[0])
    mtrand.set_bit_generator(states[1])
    torch.set_rng_state(states[2])
