"""Loops of a program that runs on this CPU: real batches, and a step is a call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cs_runtime import exits, terminal
from cs_runtime.progress import begin_training, end_training, log_how_to_resume, record_step, report_step
from cstorch.errors import essence
from cstorch.input.loader import InputLoader
from cstorch.iterations import Schedule
from cstorch.loop import base
from cstorch.loop.base import ProgramLoop
from cstorch.program import Program, configuration
from cstorch.step_count import continue_at, steps_done

_LINE_EVERY_STEPS = 100


class CpuLoop(ProgramLoop):
    """One loop on this CPU. A training takes its input from where the one before has ended."""

    def __init__(
        self, loader: InputLoader, steps: int | None = None, checkpoint_steps: int | Schedule | None = None
    ) -> None:
        super().__init__(loader, steps, checkpoint_steps)
        self._loader = loader
        self._trains = torch.is_grad_enabled() and any(
            model.training for model in Program.current().cpu_models
        )
        self._line_step, self._line_at_s = 0, 0.0

    @property
    def trains(self) -> bool:
        """See `ProgramLoop`."""
        return self._trains

    def batches(self) -> Iterator[Any]:
        """A batch for each step; the input begins again where it ends."""
        first = steps_done() if self.trains else 0
        if self.trains:
            self._loader.begin_training()
        yield from islice(self._loader.endless(first), self.steps)

    def count_step(self) -> None:
        """See `ProgramLoop`."""
        super().count_step()
        if not self.trains:
            return
        if self.completed == 1:
            self._begin_lines()
        continue_at(steps_done() + 1)

    def step_returned(self, returned: Any) -> None:
        """Logs the progress of a training where a line is due, with what its step has returned."""
        step = steps_done()
        if not self.trains:
            return
        record_step(step)
        if self.completed > 1 and step % _LINE_EVERY_STEPS:
            return
        now_s = time.perf_counter()
        rate = (step - self._line_step) / max(now_s - self._line_at_s, 1e-9)
        report_step(step, _loss(returned), rate, rate * self._batch_size)
        self._line_step, self._line_at_s = step, now_s

    def close(self) -> None:
        """See `ProgramLoop`."""
        if self.trains and self.completed:
            end_training(steps_done())

    def leave(self) -> None:
        """See `ProgramLoop`."""
        if self.trains:
            base.record_unfinished(log_how_to_resume)

    def abandon(self, error: BaseException | None) -> None:
        """See `ProgramLoop`."""
        super().abandon(error)
        if self.trains and error is not None:
            log_how_to_resume(error)

    def _begin_lines(self) -> None:
        terminal.configure_logging("cstorch")
        exits.report_at_exit(base.report_unfinished, essence)
        first = steps_done()
        begin_training(configuration().model_dir, first, first + self.steps, resumes=False)
        self._line_step, self._line_at_s = first, time.perf_counter()


def _loss(returned: Any) -> float | None:
    """The first number without dimensions that a step has returned, as on the CS system."""
    numbers = (x for x in pytree.tree_leaves(returned) if isinstance(x, torch.Tensor) and x.ndim == 0)
    loss = next(numbers, None)
    return None if loss is None else float(loss.detach())
