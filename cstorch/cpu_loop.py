"""Loops of a program that runs on this CPU: real batches, and a step is a call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from cstorch.compiled import cpu_models
from cstorch.data import DataLoader
from cstorch.step_count import continue_at, steps_done
from cstorch.turns import Turns
from cstorch.utils.schedule import Schedule


class CpuLoop(Turns):
    """One loop on this CPU. A training takes its input from where the one before has ended."""

    def __init__(
        self, loader: DataLoader, steps: int | None = None, checkpoint_steps: int | Schedule | None = None
    ) -> None:
        super().__init__(loader, steps, checkpoint_steps)
        self._loader = loader
        self._trains = torch.is_grad_enabled() and any(model.training for model in cpu_models)

    @property
    def trains(self) -> bool:
        """See `Turns`."""
        return self._trains

    def batches(self) -> Iterator[Any]:
        """A batch for each step; the input begins again where it ends."""
        first = steps_done() if self.trains else 0
        yield from islice(self._loader.endless(first), self.steps)

    def count_turn(self) -> None:
        """See `Turns`."""
        super().count_turn()
        if self.trains:
            continue_at(steps_done() + 1)
