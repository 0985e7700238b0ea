"""How far a training is: the line of its log, and a file beside the logs of its job. Pure but for the file.

The chief writes the file at every line of its progress and at every checkpoint; `csrun status` shows it, and
the launcher says from it how to go on when a job ends before its time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cs_toolkit.files import replace_file

FILE_NAME = "progress.json"
INPUT_BOUND_SHARE = 0.05
"""A device that waits for less of its time has an input that keeps up."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """What is known of a training at one of its steps.

    Attributes:
        step: global step.
        first_step: where this run has begun.
        last_step: where it ends; None: with the input.
        loss: of that step; None where it is not known.
        steps_per_s: over the steps since the line before.
        samples_per_s: the same in samples; None where it is not known.
        input_wait: share of that time in which the device had no batch; None where it is not known.
        checkpoint_step: of the newest checkpoint; None where there is none.
        checkpoint: its path.
        model_dir: of the run.
        resumes: the same command goes on from that checkpoint, without naming it.
        waits_for: why no step has ended for a while; "": steps end.
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

    @property
    def seconds_left(self) -> float | None:
        """Until the last step at the present rate; None where the one or the other is not known."""
        if self.last_step is None or not self.steps_per_s or self.waits_for:
            return None
        if self.step - self.first_step < 2:
            return None  # the first step has a rate that says nothing of the others
        return (self.last_step - self.step) / self.steps_per_s if self.step < self.last_step else None

    def to_json(self) -> dict[str, Any]:
        """The output of --json."""
        return {**asdict(self), "seconds_left": self.seconds_left}

    def line(self) -> str:
        """The line of the log."""
        rates = [f"{self.steps_per_s:.2f} steps/sec"] if self.steps_per_s is not None else []
        rates += [f"{self.samples_per_s:.0f} samples/sec"] if self.samples_per_s is not None else []
        loss = "" if self.loss is None else f" loss = {self.loss:.6g}"
        shown = f" ({', '.join(rates)})" if rates else ""
        return "; ".join([f"global step {self.step}:{loss}{shown}", *self._notes()])

    def summary(self) -> str:
        """The same for `csrun status`, without the step's name in front."""
        text = self.line().removeprefix("global ")
        return f"{text}; no step since: {self.waits_for}" if self.waits_for else text

    def _notes(self) -> list[str]:
        notes = []
        if self.last_step is not None:
            left = self.seconds_left
            notes.append(f"of {self.last_step}" + (f", {time_text(left)} left" if left is not None else ""))
        if self.checkpoint_step is not None:
            notes.append(f"checkpoint {self.checkpoint_step}")
        if self.input_wait is not None:
            notes.append(input_text(self.input_wait))
        return notes

    def how_to_go_on(self) -> str | None:
        """What a user does with a training that has ended here; None where it has reached its last step."""
        if self.last_step is not None and self.step >= self.last_step:
            return None
        reached = f"the training was at global step {self.step}"
        reached += f" of {self.last_step}" if self.last_step is not None else ""
        if self.checkpoint_step is None:
            return f"{reached} and has written no checkpoint: it begins again"
        kept = f"its newest checkpoint is of step {self.checkpoint_step}"
        if self.resumes:
            return f"{reached}; {kept} ({self.model_dir}): the same command goes on from there"
        return f"{reached}; {kept}: start from {self.checkpoint or 'it'} to go on"


def input_text(waited_share: float) -> str:
    """Whether the device waits for its input, from the share of its time in which it had no batch."""
    if waited_share < INPUT_BOUND_SHARE:
        return "input keeps up"
    return f"input-bound: {100 * waited_share:.0f}% of the time without a batch"


def time_text(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def write_progress(log_dir: Path, progress: TrainingProgress) -> None:
    """Replaces the file; that it cannot be written is no reason to stop a training."""
    with suppress(OSError):
        replace_file(log_dir / FILE_NAME, json.dumps(asdict(progress)) + "\n")


def read_progress(log_dir: Path) -> TrainingProgress | None:
    """What the chief of a job has noted last; None for nothing, or what another version has written."""
    try:
        noted: Any = json.loads((log_dir / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(noted, Mapping):
        return None
    known = {field.name for field in fields(TrainingProgress)}
    with suppress(TypeError):
        return TrainingProgress(**{name: value for name, value in noted.items() if name in known})
    return None
