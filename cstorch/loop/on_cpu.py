"""The loop of a program on this CPU: batches have values, and each step is a call of the step function."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cs_runtime import terminal
from cs_runtime.progress import HostProgress, end_training, log_how_to_resume
from cstorch.input.loader import InputLoader
from cstorch.iterations import Schedule
from cstorch.loop import base
from cstorch.loop.base import ProgramLoop
from cstorch.loop.resources import destination, lock_directory
from cstorch.program import Program, configuration
from cstorch.tracing.state import continue_at, steps_done

log = logging.getLogger("cstorch")

_STEPS_PER_LOG_LINE = 100


class CpuLoop(ProgramLoop):
    """A loop on this CPU. A training run continues its input where the previous one has ended."""

    def __init__(
        self, loader: InputLoader, steps: int | None = None, checkpoint_steps: int | Schedule | None = None
    ) -> None:
        super().__init__(loader, steps, checkpoint_steps)
        self._loader = loader
        self._trains = torch.is_grad_enabled() and any(
            model.training for model in Program.current().cpu_models
        )
        self._progress: HostProgress | None = None
        self._loss: float | None = None  # of the last step whose loss was read

    @property
    def trains(self) -> bool:
        """True if a model was in training mode, with gradients, when the loop began."""
        return self._trains

    def batches(self) -> Iterator[Any]:
        """Yield a batch for each step; the input is repeated when it ends."""
        terminal.configure_logging("cstorch")
        log.info("%s", destination().describe("train" if self.trains else "eval"))
        if not self.trains:
            yield from islice(self._loader.endless(0), self.steps)
            return
        with lock_directory():
            self._loader.begin_training()
            yield from islice(self._loader.endless(steps_done()), self.steps)

    def count_step(self) -> None:
        """Record that another step has completed; the first one of a training run starts its log."""
        super().count_step()
        if not self.trains:
            return
        if self.completed == 1:
            base.set_up_reports()
            first = steps_done()
            self._progress = HostProgress(
                configuration().model_dir,
                first,
                first + self.steps,
                _STEPS_PER_LOG_LINE,
                resumes=False,
                epochs=self._loader.epochs_of_loop(first, self.steps),
            )
        continue_at(steps_done() + 1)

    def step_returned(self, returned: Any) -> None:
        """Log the progress of a training run when a line is due, with the loss among the returned values."""
        if self._progress is not None:
            self._progress.add(steps_done(), self._batch_size, lambda: _loss(returned))
            last = self.completed == self.steps
            if last or self._progress.is_line_due:
                self._loss = _loss(returned)
            if self._progress.is_line_due:
                self._progress.log_line(self._loss)

    def close(self) -> None:
        """Log the end of a training run."""
        if self._progress is not None:
            self._progress.log_end(self._loss)
            end_training(steps_done())

    def leave(self) -> None:
        """Log how to resume a training run if the program ends with the error that leaves the loop."""
        if self.trains:
            base.record_unfinished(log_how_to_resume)

    def abandon(self, error: BaseException | None) -> None:
        """End the loop after an error, and log how to resume a training run."""
        super().abandon(error)
        if self.trains and error is not None:
            log_how_to_resume(error)


def _loss(returned: Any) -> float | None:
    """Return the first scalar tensor among the returned values, which is the loss on the CS system too."""
    numbers = (x for x in pytree.tree_leaves(returned) if isinstance(x, torch.Tensor) and x.ndim == 0)
    loss = next(numbers, None)
    return None if loss is None else float(loss.detach())
