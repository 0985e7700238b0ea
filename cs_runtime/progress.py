"""Progress of a run: phases with their times, log lines, the progress file of a job, and TensorBoard scalars.

A process trains one model at a time. `begin_training` to `end_training` record the training run of this
process, whatever its front end, in `csrun.jobs.progress` for `csrun status` and for the launcher.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cs_runtime.errors import NonFiniteLossError
from cs_runtime.live_line import TerminalLine, open_terminal_line
from cs_runtime.terminal import name_step
from cs_system.errors import CsSystemError
from cs_toolkit.live_line import REDRAW_EVERY_S
from cs_toolkit.spans import SPANS
from cs_toolkit.step import LOSS
from csrun.jobs.progress import Epochs, TrainingProgress, write_progress

if TYPE_CHECKING:
    from cs_system.client import StepOutputs

log = logging.getLogger("cs_runtime")


@dataclass
class Phase:
    """One phase of a run; `start_s` is relative to the start of the run."""

    name: str
    start_s: float
    seconds: float | None = None


class Timeline:
    """The phases of a run, in the order in which they start."""

    def __init__(self) -> None:
        self.started_at = time.time()
        self._origin = time.perf_counter()
        self.phases: list[Phase] = []

    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self._origin

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measure the body as one phase, even if it raises."""
        phase = Phase(name, self.elapsed_s())
        self.phases.append(phase)
        try:
            with SPANS.span("phases", name):
                yield phase
        finally:
            phase.seconds = self.elapsed_s() - phase.start_s

    def mark(self, name: str) -> None:
        """Record the first occurrence of an event, as a phase of zero length."""
        if all(phase.name != name for phase in self.phases):
            self.phases.append(Phase(name, self.elapsed_s(), 0.0))

    def seconds(self, name: str) -> float | None:
        """Return the total time of all phases with that name; None if there is none."""
        times = [phase.seconds for phase in self.phases if phase.name == name and phase.seconds is not None]
        return sum(times) if times else None

    def to_json(self) -> list[dict[str, Any]]:
        """Return the phases for `run_summary.json`."""
        return [asdict(phase) for phase in self.phases]


_LOG_DIR = "CSRUN_LOG_DIR"

# Interval at which steps between two log lines are recorded; the file may be on a network file system.
_WRITE_EVERY_S = 1.0

_current: TrainingProgress | None = None
_newest: tuple[int, str] | None = None
# The training run that has ended last.
_ended: TrainingProgress | None = None
_epochs: Epochs | None = None
_line: TerminalLine | None = None
_written_at_s = float("-inf")


def begin_training(
    model_dir: Path,
    first_step: int,
    last_step: int | None,
    *,
    resumes: bool = True,
    epochs: Epochs | None = None,
) -> None:
    """Record the start of a training run.

    Args:
        model_dir: Directory of the run.
        first_step: Global step of the checkpoint it resumes from; 0 for a new run.
        last_step: Global step at which it ends; None: at the end of the input.
        resumes: Repeating the command would resume from the newest checkpoint.
        epochs: The epochs of the run, of which this may be one.
    """
    global _line, _epochs
    _epochs = epochs
    last_step = epochs.last_step if epochs is not None else last_step
    if _line is None and log.isEnabledFor(logging.INFO):
        _line = open_terminal_line()
    known: tuple[int | None, str] | None = None
    if _newest is not None and _newest[0] == first_step:
        known = _newest
    elif _ended is not None and _ended.step == first_step:
        # The run continues where the one before has ended, such as the next epoch of a program's loop.
        known = _ended.checkpoint_step, _ended.checkpoint
    step, path = known or (first_step or None, "")
    _record(
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
        end = "the end of its input" if last_step is None else str(last_step)
        log.info("continuing at step %d of %s", first_step, end)


def report_step(
    step: int,
    loss: float | None,
    steps_per_s: float,
    samples_per_s: float | None = None,
    input_wait: float | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Log a progress line, and record it.

    Args:
        step: Global step.
        loss: Loss of that step.
        steps_per_s: Steps per second since the last line.
        samples_per_s: Samples per second since the last line.
        input_wait: Fraction of that time in which the device had no batch.
        metrics: Other values of that step, by name.
    """
    name_step(step)
    before = _current or TrainingProgress(step, step, None, "")
    noted = replace(
        before,
        step=step,
        loss=loss,
        steps_per_s=steps_per_s,
        samples_per_s=samples_per_s,
        input_wait=input_wait,
        waits_for="",
        metrics=metrics or {},
        epoch=_epochs.text(step) if _epochs is not None else "",
    )
    log.info("%s", noted.line())
    _record(noted)


def report_checkpoint(step: int, path: str | os.PathLike[str]) -> None:
    """Record that a checkpoint has been written."""
    global _newest, _ended
    _newest = step, os.fspath(path)
    if _current is not None:
        _record(
            replace(_current, step=max(step, _current.step), checkpoint_step=step, checkpoint=os.fspath(path))
        )
    elif _ended is not None:
        _ended = replace(_ended, checkpoint_step=step, checkpoint=os.fspath(path))


def record_step(step: int, recent: Callable[[], Mapping[str, Any]] = dict) -> None:
    """Record the current step without a log line; the live line, or the file, follows within a second.

    Args:
        step: Global step.
        recent: Returns the other fields of `TrainingProgress` that are known; called when they are shown.
    """
    name_step(step)
    if _current is None:
        return
    due = time.monotonic() - _written_at_s >= (_WRITE_EVERY_S if _line is None else REDRAW_EVERY_S)
    if due or bool(_current.waits_for):
        _record(replace(_current, step=step, waits_for="", **recent()))
    else:
        _record(replace(_current, step=step), write=False)


def report_wait(text: str) -> None:
    """Record why no step has completed for a while."""
    if _current is not None:
        _record(replace(_current, waits_for=text))


def log_how_to_resume(error: BaseException) -> None:
    """After an interruption or a failure of the system, log how the user can resume the training run."""
    interrupted = isinstance(error, KeyboardInterrupt)
    _close_line()
    # In a job the launcher reports interruptions, because it knows every way in which a job is interrupted.
    if _current is None or (interrupted and os.environ.get(_LOG_DIR)):
        return
    text = _current.resume_hint()
    if text and (interrupted or isinstance(error, CsSystemError)):
        log.info("%s", text)


def log_end(samples: int, seconds: float, loss: float | None, *, left: bool = False) -> None:
    """Log the end of a training run.

    Args:
        samples: Samples trained on in this run.
        seconds: Duration of its steps.
        loss: Loss of its last step; None if it has run none.
        left: The program has left the run before its last step.
    """
    _close_line()
    log.info(
        "Training %s with %d samples in %.3f seconds, %.2f samples/second.",
        "left by the program" if left else "finished",
        samples,
        seconds,
        samples / max(seconds, 1e-9),
    )
    if loss is not None:
        log.info("Loss for final step: %.6g.", loss)


def end_training(step: int, input_wait: float | None = None, reports: Sequence[Path] = ()) -> None:
    """Record that the training run has completed, and log which steps it has run and where to read more.

    Args:
        step: Global step.
        input_wait: Fraction of the time of its steps in which the device had no batch.
        reports: Files that were written about it.
    """
    global _current, _ended
    _close_line()
    if _current is not None:
        _ended = replace(_current, step=step, ended=True)
        _record(_ended)
        if step > _ended.first_step:
            log.info("%s", _ended.end_text(input_wait, reports))
    _current = None


def log_unsaved_steps(advice: str) -> None:
    """At the end of a program that writes its own checkpoints, log if its last steps are in none.

    Args:
        advice: What the program can do.
    """
    text = _ended.unsaved_text() if _current is None and _ended is not None else None
    if text:
        log.info("%s; %s", text, advice)


def _record(progress: TrainingProgress, *, write: bool = True) -> None:
    global _current, _written_at_s
    if write and _epochs is not None:
        progress = replace(progress, epoch=_epochs.text(progress.step))
    _current = progress
    if not write:
        return
    _written_at_s = time.monotonic()
    directory = os.environ.get(_LOG_DIR)
    if directory:
        write_progress(Path(directory), progress)
    if _line is not None:
        _line.show(progress.live_text)


def _close_line() -> None:
    global _line
    if _line is not None:
        _line.close()
        _line = None


class RecentRate:
    """Measures steps per second over the last seconds, and the fraction of that time without a batch."""

    _WINDOW_S = 10.0

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float, float]] = deque()

    def add(self, step: int, at_s: float, waited_s: float = 0.0) -> None:
        """Set a mark.

        Args:
            step: Global step.
            at_s: When it ended, by any clock.
            waited_s: Total time without a batch until then.
        """
        marks = self._marks
        # Twenty marks a window: steps may be shorter than the clock's resolution.
        if len(marks) > 1 and at_s - marks[-2][1] < self._WINDOW_S / 20:
            marks.pop()
        marks.append((step, at_s, waited_s))
        while len(marks) > 2 and at_s - marks[1][1] >= self._WINDOW_S:
            marks.popleft()

    def rates(self) -> tuple[float, float] | None:
        """Return steps per second and the fraction of the time without a batch; None before two marks."""
        if len(self._marks) < 2:
            return None
        (first, began_s, waited_before_s), (last, ended_s, waited_s) = self._marks[0], self._marks[-1]
        seconds = ended_s - began_s
        if seconds <= 0:
            return None
        return (last - first) / seconds, min(1.0, max(0.0, (waited_s - waited_before_s) / seconds))


class Throughput:
    """Measures steps per second between marks, and the fraction of that time without a batch."""

    # Times are those of the system's clock: the outputs of many steps arrive on the chief together.

    def __init__(self) -> None:
        self._step: int | None = None
        self._at_s = 0.0
        self._waited_s = 0.0
        self._waited_before_s = 0.0

    def start(self, outputs: StepOutputs) -> None:
        """Set the first mark to the start of the first step on the device; later calls do nothing."""
        if self._step is None:
            self._step, self._at_s = outputs.first_step, outputs.began_s

    def mark(self, step: int, outputs: StepOutputs) -> tuple[float, float]:
        """Set a mark at `step`, one of `outputs`.

        Returns:
            Steps per second since the last mark, and the fraction of that time without a batch.
        """
        assert self._step is not None, "call start() first"
        at_s = outputs.time_of(step)
        waited_s = self._waited_before_s + outputs.waited_s * (step - outputs.first_step) / outputs.count
        seconds = max(at_s - self._at_s, 1e-9)
        rate, share = (step - self._step) / seconds, (waited_s - self._waited_s) / seconds
        self._step, self._at_s, self._waited_s = step, at_s, waited_s
        return rate, min(1.0, max(0.0, share))

    def finish(self, outputs: StepOutputs) -> None:
        """Close a span of steps once all marks in it are set."""
        self._waited_before_s += outputs.waited_s


class Progress:
    """Counts steps and logs `global step N: loss = L (S steps/sec, R samples/sec); ...`.

    A line is logged after the first step and at every multiple of `log_every_steps`, independent of how many
    steps the device runs per call. Rates are over the steps since the last line, including pauses.
    """

    def __init__(
        self,
        first_step: int,
        batch_size: int,
        log_every_steps: int | None,
        model_dir: Path,
        metrics: Sequence[str] = (),
    ) -> None:
        self._metrics = metrics
        self.first_step = first_step
        self.step = first_step
        self.loss: float | None = None
        self._batch_size = batch_size
        self._log_every = log_every_steps
        self._model_dir = model_dir
        self._throughput = Throughput()
        self._recent = RecentRate()
        self._waited_s = self._began_s = self._ended_s = 0.0

    @property
    def samples(self) -> int:
        """Samples trained on in this run."""
        return (self.step - self.first_step) * self._batch_size

    @property
    def input_wait(self) -> float | None:
        """Fraction of the time of the steps in which the device had no batch; None before the first step."""
        seconds = self._ended_s - self._began_s
        return min(1.0, self._waited_s / seconds) if seconds > 0 else None

    def add(self, outputs: StepOutputs) -> None:
        """Add the outputs of consecutive steps.

        Raises:
            NonFiniteLossError: A loss is NaN or infinite; the steps before it have been logged.
        """
        losses = outputs.outputs[LOSS].reshape(-1)
        bad = np.flatnonzero(~np.isfinite(losses))
        good = int(bad[0]) if bad.size else len(losses)
        self._throughput.start(outputs)
        for step in range(outputs.first_step + 1, outputs.first_step + good + 1):
            if is_line_due(step, self.first_step, self._log_every):
                rate, input_wait = self._throughput.mark(step, outputs)
                loss = float(losses[step - outputs.first_step - 1])
                values = self._metric_values(outputs, step)
                report_step(step, loss, rate, rate * self._batch_size, input_wait, values)
        self._throughput.finish(outputs)
        if self.step == self.first_step:
            self._began_s = outputs.began_s
            self._recent.add(outputs.first_step, outputs.began_s)
        self._waited_s += outputs.waited_s
        self._ended_s = outputs.ended_s
        self._recent.add(outputs.first_step + outputs.count, outputs.ended_s, self._waited_s)
        record_step(
            outputs.first_step + good,
            lambda: self._recent_fields(outputs, good) if good else {},
        )
        if bad.size:
            raise NonFiniteLossError(outputs.first_step + good + 1, float(losses[good]), self._model_dir)
        self.step = outputs.first_step + len(losses)
        self.loss = float(losses[-1])

    def _metric_values(self, outputs: StepOutputs, step: int) -> dict[str, float]:
        row = step - outputs.first_step - 1
        return {name.removeprefix("output_"): float(outputs.outputs[name][row]) for name in self._metrics}

    def _recent_fields(self, outputs: StepOutputs, count: int) -> dict[str, Any]:
        """Return the fields of `TrainingProgress` after `count` of the steps."""
        fields: dict[str, Any] = {
            "loss": float(outputs.outputs[LOSS].reshape(-1)[count - 1]),
            "metrics": self._metric_values(outputs, outputs.first_step + count),
        }
        rates = self._recent.rates()
        if rates is not None:
            rate, fields["input_wait"] = rates
            fields |= {"steps_per_s": rate, "samples_per_s": rate * self._batch_size}
        return fields


def is_line_due(step: int, first_step: int, log_every_steps: int | None) -> bool:
    """Return True if a progress line is due after a step: the first one, or a multiple of the interval."""
    every = log_every_steps
    return bool(every) and (step == first_step + 1 or step % (every or 1) == 0)


class HostProgress:
    """Progress of a training run on this CPU: counts steps, and logs a line as `Progress` does.

    Args:
        model_dir: Directory of the run.
        first_step: Global step at which it begins.
        last_step: Global step at which it ends; None: at the end of the input.
        log_every_steps: Interval of log lines; 0 or None for none.
        resumes: Whether repeating the command would resume from the newest checkpoint.
        epochs: The epochs of the run, of which this may be one.

    Attributes:
        step: Global step.
        samples: Samples trained on in this run.
    """

    def __init__(
        self,
        model_dir: Path,
        first_step: int,
        last_step: int | None,
        log_every_steps: int | None,
        *,
        resumes: bool = True,
        epochs: Epochs | None = None,
    ) -> None:
        self.step = self._first_step = self._line_step = first_step
        self.samples = self._line_samples = 0
        self._log_every = log_every_steps
        begin_training(model_dir, first_step, last_step, resumes=resumes, epochs=epochs)
        self._started_s = self._line_s = time.perf_counter()
        self._recent = RecentRate()
        self._recent.add(first_step, self._started_s)

    def add(self, step: int, samples: int, loss: Callable[[], float | None] = lambda: None) -> None:
        """Count the samples of a step.

        Args:
            step: Global step at which it has ended.
            samples: Number of its samples.
            loss: Returns its loss, if it is known; called about once a second.
        """
        self.step = step
        self.samples += samples
        record_step(step, lambda: self._recent_fields(loss()))

    @property
    def is_line_due(self) -> bool:
        """True if a progress line is due after this step."""
        return is_line_due(self.step, self._first_step, self._log_every)

    def log_line(self, loss: float | None) -> None:
        """Log a progress line; rates are over the steps since the last one."""
        report_step(self.step, loss, *self._rates())
        self._line_step, self._line_samples, self._line_s = self.step, self.samples, time.perf_counter()

    def scalars(self, loss: float) -> dict[str, float]:
        """Return the loss and the rates since the last progress line, as `StepEvents` writes them."""
        return {"loss": loss, **_rate_scalars(*self._rates())}

    def log_end(self, loss: float | None) -> None:
        """Log the end of the run."""
        log_end(self.samples, time.perf_counter() - self._started_s, loss)

    def _recent_fields(self, loss: float | None) -> dict[str, float]:
        self._recent.add(self.step, time.perf_counter())
        fields = {} if loss is None else {"loss": loss}
        rates = self._recent.rates()
        if rates is not None:
            batch = self.samples / (self.step - self._first_step)
            fields |= {"steps_per_s": rates[0], "samples_per_s": rates[0] * batch}
        return fields

    def _rates(self) -> tuple[float, float]:
        """Return the steps and samples per second since the last progress line."""
        seconds = max(time.perf_counter() - self._line_s, 1e-9)
        return (self.step - self._line_step) / seconds, (self.samples - self._line_samples) / seconds


# Prefix of the name of a step output that is a summary of the user's program.
SUMMARY_PREFIX = "summary/"


class ScalarWriter(Protocol):
    """A TensorBoard event file, written by a framework."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars by tag."""
        ...


class StepEvents:
    """Observer of a run that writes loss, rates and the user's scalar summaries to TensorBoard.

    Args:
        writer: Event file to write to.
        every_steps: Number of steps between two entries; 0 or None writes none.
        batch_size: Samples in one step.
    """

    def __init__(self, writer: ScalarWriter, every_steps: int | None, batch_size: int) -> None:
        self._writer = writer
        self._every = every_steps
        self._batch_size = batch_size
        self._throughput = Throughput()

    def steps(self, outputs: StepOutputs) -> None:
        """Write the entries that are due; row i of an output belongs to global step `first_step + i + 1`."""
        if not self._every or not outputs.outputs:
            return
        self._throughput.start(outputs)
        first_step, columns = outputs.first_step, outputs.outputs.items()
        first_due = first_step - first_step % self._every + self._every
        # The tag of `output_loss` is `loss`, that of `output_summary/<tag>` is `<tag>`.
        rows_of_tags = [
            (name.removeprefix("output_").removeprefix(SUMMARY_PREFIX), value)
            for name, value in columns
            if value.ndim == 1
        ]
        for step in range(first_due, first_step + outputs.count + 1, self._every):
            row = step - first_step - 1
            values = {tag: float(value[row]) for tag, value in rows_of_tags}
            rate, _ = self._throughput.mark(step, outputs)
            self._writer.scalars(step, {**values, **_rate_scalars(rate, rate * self._batch_size)})


def _rate_scalars(steps_per_s: float, samples_per_s: float) -> dict[str, float]:
    return {"global_step/sec": steps_per_s, "samples/sec": samples_per_s}
