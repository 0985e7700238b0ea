"""Progress of a training: the log lines and the non-finite check, for every step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cs_runtime import progress_notes
from cs_runtime.errors import NonFiniteLossError
from cs_runtime.program import LOSS

if TYPE_CHECKING:
    from cs_system.client import StepOutputs


class Pace:
    """Steps per second since a mark, and the share of that time without a batch, by the clock of the system.

    Outputs of many steps arrive together, and of several calls to the device at once: when they arrive says
    nothing of when steps were done.
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._at_s = 0.0
        self._waited_s = 0.0
        self._waited_before_s = 0.0

    def start(self, outputs: StepOutputs) -> None:
        """The first mark is where the device began with the first step; later calls do nothing."""
        if self._step is None:
            self._step, self._at_s = outputs.first_step, outputs.began_s

    def mark(self, step: int, outputs: StepOutputs) -> tuple[float, float]:
        """Steps per second, and the share without a batch, from the last mark to `step`, one of `outputs`.

        The new mark is there.
        """
        assert self._step is not None, "start comes first"
        at_s = outputs.time_of(step)
        waited_s = self._waited_before_s + outputs.waited_s * (step - outputs.first_step) / outputs.count
        seconds = max(at_s - self._at_s, 1e-9)
        rate, share = (step - self._step) / seconds, (waited_s - self._waited_s) / seconds
        self._step, self._at_s, self._waited_s = step, at_s, waited_s
        return rate, min(1.0, max(0.0, share))

    def passed(self, outputs: StepOutputs) -> None:
        """All marks in `outputs` are set."""
        self._waited_before_s += outputs.waited_s


class Progress:
    """Counts steps, logs `global step N: loss = L (S steps/sec, R samples/sec); ...`.

    After the first step and at every multiple of `log_every_steps`, whatever number of steps the device is
    given at a time. Rates are of the steps since the line before, with what pauses there were between.
    """

    def __init__(
        self, first_step: int, batch_size: int, log_every_steps: int | None, model_dir: Path
    ) -> None:
        self.first_step = first_step
        self.step = first_step
        self.loss: float | None = None
        self._batch_size = batch_size
        self._log_every = log_every_steps
        self._model_dir = model_dir
        self._pace = Pace()

    @property
    def samples(self) -> int:
        """Samples trained on in this run."""
        return (self.step - self.first_step) * self._batch_size

    def add(self, outputs: StepOutputs) -> None:
        """Takes the outputs of consecutive steps.

        Raises:
            NonFiniteLossError: a loss is NaN or infinite; the lines of the steps before it are logged.
        """
        losses = outputs.outputs[LOSS].reshape(-1)
        bad = np.flatnonzero(~np.isfinite(losses))
        good = int(bad[0]) if bad.size else len(losses)
        self._pace.start(outputs)
        for step in range(outputs.first_step + 1, outputs.first_step + good + 1):
            if self._is_due(step):
                self._line(step, float(losses[step - outputs.first_step - 1]), outputs)
        self._pace.passed(outputs)
        progress_notes.now_at(outputs.first_step + good)
        if bad.size:
            raise NonFiniteLossError(outputs.first_step + good + 1, float(losses[good]), self._model_dir)
        self.step = outputs.first_step + len(losses)
        self.loss = float(losses[-1])

    def _is_due(self, step: int) -> bool:
        every = self._log_every
        return bool(every) and (step == self.first_step + 1 or step % (every or 1) == 0)

    def _line(self, step: int, loss: float, outputs: StepOutputs) -> None:
        rate, input_wait = self._pace.mark(step, outputs)
        progress_notes.reached(step, loss, rate, rate * self._batch_size, input_wait)
