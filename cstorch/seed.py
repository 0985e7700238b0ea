"""Where random numbers begin."""

from __future__ import annotations

import torch

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
