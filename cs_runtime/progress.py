"""Progress of a training: the log lines and the non-finite check, for every step."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cs_runtime.errors import NonFiniteLossError
from cs_runtime.program import LOSS
from cs_system.errors import CsSystemError
from csrun.jobs.progress import TrainingProgress, write_progress

if TYPE_CHECKING:
    from cs_system.client import StepOutputs


@dataclass
class Phase:
    """One phase; `start_s` counts from the start of the run."""

    name: str
    start_s: float
    seconds: float | None = None


class Timeline:
    """Measures phases in the order in which they begin."""

    def __init__(self) -> None:
        self.started_at = time.time()
        self._origin = time.perf_counter()
        self.phases: list[Phase] = []

    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self._origin

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measures the body as one phase, also when it raises."""
        phase = Phase(name, self.elapsed_s())
        self.phases.append(phase)
        try:
            yield phase
        finally:
            phase.seconds = self.elapsed_s() - phase.start_s

    def mark(self, name: str) -> None:
        """Notes that something happened now, the first time only; a phase of no length."""
        if all(phase.name != name for phase in self.phases):
            self.phases.append(Phase(name, self.elapsed_s(), 0.0))

    def seconds(self, name: str) -> float | None:
        """Total of all phases of that name; None when there was none."""
        times = [phase.seconds for phase in self.phases if phase.name == name and phase.seconds is not None]
        return sum(times) if times else None

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data for `run_summary.json`."""
        return [asdict(phase) for phase in self.phases]


log = logging.getLogger("cs_runtime")

_LOG_DIR = "CSRUN_LOG_DIR"

_present: TrainingProgress | None = None
_newest: tuple[int, str] | None = None


def begin_training(model_dir: Path, first_step: int, last_step: int | None, *, resumes: bool = True) -> None:
    """A training begins.

    Args:
        model_dir: of the run.
        first_step: global step of the checkpoint that it goes on from; 0 for a new one.
        last_step: where it ends; None: with the input.
        resumes: the same command would go on from the newest checkpoint.
    """
    known = _newest if _newest is not None and _newest[0] == first_step else None
    step, path = known or (first_step or None, "")
    _note(
        TrainingProgress(
            first_step,
            first_step,
            last_step,
            str(model_dir),
            checkpoint_step=step,
            checkpoint=path,
            resumes=resumes,
        )
    )
    if first_step:
        log.info("%s", continuing_text(first_step, last_step))


def continuing_text(first_step: int, last_step: int | None) -> str:
    """That a training goes on from a checkpoint."""
    end = "the end of its input" if last_step is None else str(last_step)
    return f"continuing at step {first_step} of {end}"


def report_step(
    step: int,
    loss: float | None,
    steps_per_s: float,
    samples_per_s: float | None = None,
    input_wait: float | None = None,
) -> None:
    """Logs a line of progress and notes it.

    Args:
        step: global step.
        loss: of that step.
        steps_per_s: since the line before.
        samples_per_s: the same in samples.
        input_wait: share of that time in which the device had no batch.
    """
    before = _present or TrainingProgress(step, step, None, "")
    noted = replace(
        before,
        step=step,
        loss=loss,
        steps_per_s=steps_per_s,
        samples_per_s=samples_per_s,
        input_wait=input_wait,
        waits_for="",
    )
    log.info("%s", noted.line())
    _note(noted)


def report_checkpoint(step: int, path: str | os.PathLike[str]) -> None:
    """A checkpoint has been written."""
    global _newest
    _newest = step, os.fspath(path)
    if _present is not None:
        _note(
            replace(_present, step=max(step, _present.step), checkpoint_step=step, checkpoint=os.fspath(path))
        )


def record_step(step: int) -> None:
    """Notes a step without a line, for what is said where the training ends."""
    if _present is not None:
        _note(replace(_present, step=step, waits_for=""), write=bool(_present.waits_for))


def report_wait(text: str) -> None:
    """No step has ended for a while; `text` says why."""
    if _present is not None:
        _note(replace(_present, waits_for=text))


def log_how_to_resume(error: BaseException) -> None:
    """Says what a user does with the training that an error has ended, where it may simply go on.

    Of an interruption the launcher of a job says it, which knows of all ways in which a job is interrupted.
    """
    interrupted = isinstance(error, KeyboardInterrupt)
    if _present is None or (interrupted and os.environ.get(_LOG_DIR)):
        return
    text = _present.how_to_go_on()
    if text and (interrupted or isinstance(error, CsSystemError)):
        log.info("%s", text)


def end_training(step: int) -> None:
    """The training has ended well, at this global step."""
    global _present
    if _present is not None:
        _note(replace(_present, step=step))
    _present = None


def _note(progress: TrainingProgress, *, write: bool = True) -> None:
    global _present
    _present = progress
    directory = os.environ.get(_LOG_DIR)
    if write and directory:
        write_progress(Path(directory), progress)


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
        record_step(outputs.first_step + good)
        if bad.size:
            raise NonFiniteLossError(outputs.first_step + good + 1, float(losses[good]), self._model_dir)
        self.step = outputs.first_step + len(losses)
        self.loss = float(losses[-1])

    def _is_due(self, step: int) -> bool:
        every = self._log_every
        return bool(every) and (step == self.first_step + 1 or step % (every or 1) == 0)

    def _line(self, step: int, loss: float, outputs: StepOutputs) -> None:
        rate, input_wait = self._pace.mark(step, outputs)
        report_step(step, loss, rate, rate * self._batch_size, input_wait)


SUMMARY_PREFIX = "summary/"
"""Begins the name of an output of the step that is a summary of the user's."""


class ScalarWriter(Protocol):
    """An event file of a framework's making."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one scalar a tag."""
        ...


class StepEvents:
    """Writes loss, rates and the user's scalar summaries every so many steps.

    It is the observer of a run on the CS system: `steps` takes the outputs of consecutive steps.

    Args:
        writer: Where to.
        every_steps: Step distance between two entries; 0 or None writes none.
        batch_size: Samples in one step.
    """

    def __init__(self, writer: ScalarWriter, every_steps: int | None, batch_size: int) -> None:
        self._writer = writer
        self._every = every_steps
        self._batch_size = batch_size
        self._pace = Pace()

    def steps(self, outputs: StepOutputs) -> None:
        """Takes outputs stacked over steps: row i is of global step `first_step + i + 1`."""
        if not self._every or not outputs.outputs:
            return
        self._pace.start(outputs)
        first_step, columns = outputs.first_step, outputs.outputs.items()
        first_due = first_step - first_step % self._every + self._every
        for step in range(first_due, first_step + outputs.count + 1, self._every):
            row = step - first_step - 1
            values = {_tag(name): float(value[row]) for name, value in columns if value.ndim == 1}
            rate, _ = self._pace.mark(step, outputs)
            rates = {"global_step/sec": rate, "samples/sec": rate * self._batch_size}
            self._writer.scalars(step, {**values, **rates})


def _tag(output_name: str) -> str:
    """`output_loss` -> `loss`, `output_summary/<tag>` -> `<tag>`."""
    return output_name.removeprefix("output_").removeprefix(SUMMARY_PREFIX)
