"""Progress of a training run: the line in its log, and a file next to the logs of its job.

The chief writes the file at every progress line and at every checkpoint. `csrun status` shows it, and the
launcher prints how to resume a job that has ended early.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cs_toolkit.figures import format_rate, format_share
from cs_toolkit.files import read_json, replace_file

FILE_NAME = "progress.json"


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of a training run.

    Attributes:
        count: number of epochs.
        steps: steps of an epoch; the last one may have fewer.
        first_step: global step at which the first one has started.
        last_step: global step at which the last one ends.
    """

    count: int
    steps: int
    first_step: int
    last_step: int

    def text(self, step: int) -> str:
        """Return the place of a global step: `epoch 2 of 5, step 120 of 938`."""
        index, rest = divmod(max(0, step - self.first_step - 1), self.steps)
        steps = min(self.steps, self.last_step - self.first_step - index * self.steps)
        return f"epoch {index + 1} of {self.count}, step {rest + 1} of {steps}"


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The progress of a training run at one of its steps.

    Attributes:
        step: global step.
        first_step: global step at which this run has started.
        last_step: global step at which it ends; None if it ends with the input.
        loss: of that step; None if unknown.
        steps_per_s: rate since the previous line of the log, or between two lines over the last seconds.
        samples_per_s: the same in samples; None if unknown.
        input_wait: share of that time in which the device had no batch; None if unknown.
        checkpoint_step: of the newest checkpoint; None without one.
        checkpoint: path of the newest checkpoint.
        model_dir: of the run.
        resumes: the same command resumes from that checkpoint, without naming it.
        waits_for: why no step has ended for a while; "" while steps end.
        ended: the run has reached its end.
        metrics: other values of the step by name, such as those that a Keras model is compiled with.
        epoch: place of the step in the epochs of the run, as text; "" without epochs.
    """

    step: int
    first_step: int
    last_step: int | None
    model_dir: str
    loss: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    input_wait: float | None = None
    checkpoint_step: int | None = None
    checkpoint: str = ""
    resumes: bool = True
    waits_for: str = ""
    ended: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    epoch: str = ""

    @property
    def seconds_left(self) -> float | None:
        """Time to the last step at the present rate; None if either is unknown."""
        if self.last_step is None or not self.steps_per_s or self.waits_for:
            return None
        if self.step - self.first_step < 2:
            return None  # the rate of the first step does not predict the others
        return (self.last_step - self.step) / self.steps_per_s if self.step < self.last_step else None

    def cell(self, *, with_rate: bool) -> str:
        """Return step, last step and rate for a table."""
        last = f" of {self.last_step}" if self.last_step is not None else ""
        rate = f", {self.steps_per_s:.2f} steps/s" if with_rate and self.steps_per_s is not None else ""
        return f"{self.step}{last}{rate}"

    def to_json(self) -> dict[str, Any]:
        """Return the progress for --json."""
        return {**asdict(self), "seconds_left": self.seconds_left}

    def line(self) -> str:
        """Return the line for the log."""
        rates = [f"{self.steps_per_s:.2f} steps/sec"] if self.steps_per_s is not None else []
        rates += [f"{self.samples_per_s:.0f} samples/sec"] if self.samples_per_s is not None else []
        values = {} if self.loss is None else {"loss": self.loss, **self.metrics}
        loss = " " + ", ".join(f"{name} = {value:.6g}" for name, value in values.items()) if values else ""
        rate = f" ({', '.join(rates)})" if rates else ""
        notes = []
        if self.last_step is not None:
            left = self.seconds_left
            notes.append(f"of {self.last_step}" + (f", {time_text(left)} left" if left is not None else ""))
        if self.epoch:
            notes.append(self.epoch)
        if self.checkpoint_step is not None:
            notes.append(f"checkpoint {self.checkpoint_step}")
        if self.input_wait is not None:
            notes.append(input_text(self.input_wait))
        return "; ".join([f"global step {self.step}:{loss}{rate}", *notes])

    def live_text(self, columns: int) -> str:
        """Return the text of the live line; the least important parts that do not fit are left out."""
        step = f"step {self.step}" + (f"/{self.last_step}" if self.last_step is not None else "")
        if self.waits_for:
            return f"{step}  no step since: {self.waits_for}"
        left, wait = self.seconds_left, self.input_wait
        # In the order of the line, each with its rank of importance.
        parts = [(0.0, step)]
        if self.loss is not None:
            parts.append((1, f"loss {self.loss:.4g}"))
            values = enumerate(self.metrics.items())
            parts += [(4 + n / 100, f"{name} {value:.4g}") for n, (name, value) in values]
        if self.epoch:
            parts.append((3.7, self.epoch.partition(",")[0]))
        if self.samples_per_s is not None:
            parts.append((3, f"{format_rate(self.samples_per_s)} samples/s"))
        if left is not None:
            parts.append((2, f"{_clock_text(left)} left"))
        if self.checkpoint_step is not None:
            parts.append((5, f"checkpoint {self.checkpoint_step}"))
        if wait is not None:
            bound = is_input_bound(wait)
            parts.append((3.5, f"input-bound {format_share(wait)}") if bound else (6, "input keeps up"))
        while len(parts) > 1 and len("  ".join(text for _, text in parts)) >= columns:
            parts.remove(max(parts))
        return "  ".join(text for _, text in parts)

    def summary(self) -> str:
        """Return the line for `csrun status`."""
        text = self.line().removeprefix("global ")
        return f"{text}; no step since: {self.waits_for}" if self.waits_for else text

    def end_text(self, input_wait: float | None, reports: Sequence[Path]) -> str:
        """Return the summary of a run that ends here.

        Args:
            input_wait: Share of the time of all its steps in which the device had no batch; None if unknown.
            reports: Files that were written about it.
        """
        parts = [f"steps {self.first_step + 1} to {self.step}"]
        if self.checkpoint_step is not None:
            path = f": {self.checkpoint}" if self.checkpoint else ""
            parts.append(f"newest checkpoint of step {self.checkpoint_step}{path}")
        if input_wait is not None:
            parts.append(input_text(input_wait))
        if reports:
            parts.append(f"reports: {', '.join(map(str, reports))}")
        return "; ".join(parts)

    def unsaved_text(self) -> str | None:
        """Return how many of the steps are in no checkpoint; None if all are in one."""
        unsaved = self.step - (self.checkpoint_step or 0)
        if unsaved <= 0:
            return None
        if not self.checkpoint_step:
            return f"no checkpoint was written of the {unsaved} step{'s' if unsaved > 1 else ''}"
        steps = "the last step is" if unsaved == 1 else f"the last {unsaved} steps are"
        return f"{steps} in no checkpoint"

    def resume_hint(self) -> str | None:
        """Return how to resume a run that has ended here; None if it has reached its last step."""
        if self.last_step is not None and self.step >= self.last_step:
            return None
        reached = f"training was at global step {self.step}"
        reached += f" of {self.last_step}" if self.last_step is not None else ""
        if self.checkpoint_step is None:
            return (
                f"{reached} and has written no checkpoint: the same command starts again from the beginning"
            )
        checkpoint = f"its newest checkpoint is of step {self.checkpoint_step}"
        if self.resumes:
            return f"{reached}; {checkpoint} ({self.model_dir}): the same command resumes from there"
        return f"{reached}; {checkpoint}: start from {self.checkpoint or 'it'} to resume"


def is_input_bound(waited_share: float) -> bool:
    """Return True if the device had no batch for such a share of its time that the input limits the rate."""
    from cs_toolkit.step import INPUT_BOUND_SHARE  # most launchers show no rates

    return waited_share >= INPUT_BOUND_SHARE


def input_text(waited_share: float) -> str:
    """Describe the input by the share of its time in which the device had no batch."""
    if not is_input_bound(waited_share):
        return "input keeps up"
    return f"input-bound: {format_share(waited_share)} of the time without a batch"


def time_text(seconds: float) -> str:
    """Format a time as `45 s`, `3 min 20 s`, `2 h 05 min` or `3 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def _clock_text(seconds: float) -> str:
    """Format a time as `0:45`, `3:20` or `2:05:00`."""
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_s:02d}" if hours else f"{minutes}:{whole_s:02d}"


def write_progress(log_dir: Path, progress: TrainingProgress) -> None:
    """Replace the file; errors are ignored."""
    with suppress(OSError):  # training must not stop for them
        replace_file(log_dir / FILE_NAME, json.dumps(asdict(progress)) + "\n")


class ProgressFile:
    """The file of a running job, which is read only when it has changed.

    Args:
        log_dir: Directory of the job's logs; a file that exists already is of an earlier start of the job.
    """

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._known = self._version()
        self._progress: TrainingProgress | None = None

    def read(self) -> TrainingProgress | None:
        """Return the newest progress; None before the first training run of this start of the job."""
        version = self._version()
        if version is not None and version != self._known:
            self._known, self._progress = version, read_progress(self._log_dir)
        return self._progress

    def _version(self) -> tuple[int, int] | None:
        try:
            found = (self._log_dir / FILE_NAME).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def read_progress(log_dir: Path) -> TrainingProgress | None:
    """Read the file of a job; None if it does not exist, or a field is missing or of another type."""
    # Another version of the toolkit may have written it, with other fields.
    try:
        content: Any = read_json(log_dir / FILE_NAME)
    except (OSError, ValueError):
        return None
    if not isinstance(content, Mapping):
        return None
    known = {known.name for known in fields(TrainingProgress)}
    with suppress(TypeError, ValueError, AttributeError, ArithmeticError):
        progress = TrainingProgress(**{name: value for name, value in content.items() if name in known})
        # A launcher that shows the progress must not fail for a damaged file.
        progress.line(), progress.live_text(0), progress.resume_hint()
        return progress
    return None
