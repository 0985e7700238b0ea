"""Progress of a training: the log lines and the non-finite check, for every step."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from runtime.errors import NonFiniteLossError
from runtime.program import LOSS

log = logging.getLogger("runtime")


class Progress:
    """Counts steps, logs `global step N: loss = L (S steps/sec, R samples/sec)`.

    Rates are of the steps since the previous line, so that a pause for a checkpoint shows in one line only.
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
        self._line_step = first_step
        self._line_at = time.perf_counter()

    def start(self) -> None:
        """Starts the clock of the first rate."""
        self._line_at = time.perf_counter()

    @property
    def samples(self) -> int:
        """Samples trained on in this run."""
        return (self.step - self.first_step) * self._batch_size

    def add(self, first_step: int, outputs: Mapping[str, np.ndarray]) -> None:
        """Takes the outputs of consecutive steps, row i of global step `first_step + i + 1`.

        Raises:
            NonFiniteLossError: a loss is NaN or infinite.
        """
        losses = outputs[LOSS].reshape(-1)
        for index in np.flatnonzero(~np.isfinite(losses)):
            raise NonFiniteLossError(first_step + int(index) + 1, float(losses[index]), self._model_dir)
        self.step = first_step + len(losses)
        self.loss = float(losses[-1])
        if self._log_every:
            line_step = self.step - self.step % self._log_every
            if line_step > max(first_step, self._line_step):
                self._line(line_step, float(losses[line_step - first_step - 1]))

    def _line(self, step: int, loss: float) -> None:
        now = time.perf_counter()
        rate = (self.step - self._line_step) / max(now - self._line_at, 1e-9)
        log.info(
            "global step %d: loss = %.6g (%.2f steps/sec, %.0f samples/sec)",
            step,
            loss,
            rate,
            rate * self._batch_size,
        )
        self._line_step, self._line_at = self.step, now
