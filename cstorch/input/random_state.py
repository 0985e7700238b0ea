"""Seeds, and the state of random number generators while the input is read."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

from cstorch.program import configuration

_LARGEST = 2**31 - 1
"""Of the seed of a step on the system."""


def manual_seed(seed: int) -> torch.Generator:
    """As `torch.manual_seed`: for this CPU, and for random operations of steps that are recorded later."""
    return torch.manual_seed(seed)


def program_seed() -> int:
    """What the program has seeded torch with; 0 where it has not.

    Torch then seeds itself with 64 random bits, which another process that goes on from a checkpoint of this
    one would not have. Seeds of programs are shorter.
    """
    seed = torch.initial_seed()
    return seed if seed < 2**32 else 0


def seed_of_steps() -> int:
    """The seed of random operations on the system: the configured one, else that of the program."""
    configured = configuration().seed
    return (program_seed() if configured is None else configured) & _LARGEST


class RandomState:
    """Random numbers of their own, which begin at a seed: those of the program stand still in the body."""

    def __init__(self, seed: int) -> None:
        self._program = _numbers()
        # By its generator: the state of NumPy's takes as long to copy as a small batch takes to make.
        self._own: Numbers = random.Random(seed).getstate(), np.random.MT19937(), torch.get_rng_state()
        with self:
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)

    def __enter__(self) -> None:
        self._program = _numbers()
        _set_numbers(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = _numbers()
        _set_numbers(self._program)


Numbers = tuple[Any, np.random.BitGenerator, torch.Tensor]


def _numbers() -> Numbers:
    return random.getstate(), mtrand.get_bit_generator(), torch.get_rng_state()


def _set_numbers(numbers: Numbers) -> None:
    random.setstate(numbers[0])
    mtrand.set_bit_generator(numbers[1])
    torch.set_rng_state(numbers[2])
