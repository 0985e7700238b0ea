"""What a loop of a program knows of itself, wherever its steps run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from cs_toolkit.source_files import is_users_file
from cstorch.input.analysis import export_input_function
from cstorch.input.loader import InputLoader
from cstorch.iterations import Schedule, checkpoint_steps_of
from cstorch.loop.rates import RateTracker
from cstorch.profiler import ProfilerRegistry
from cstorch.program import Program, configuration
from cstorch.step_count import steps_done

_SMOOTHING = 0.6
"""Weight of the newest rate: steps on the system come back several at a time."""


class ProgramLoop:
    """One loop.

    Args:
        loader: The input.
        steps: How many; None: those of the loader.
        checkpoint_steps: When checkpoints may be written, beside the last step; None: as configured.

    Attributes:
        steps: How many there are.
        can_extend: The program may add steps to a run that has begun.
        checkpoints: When checkpoints are written; None for never.
        completed: Steps of which the program has the outputs.
        ended: Nothing runs any more, or nothing ever ran as the program was only compiled.
        rates: Counts the samples of the turns.
        summaries: What the step of this turn has summarized, by name.
        writer: Where summaries go by themselves, if anywhere.
    """

    def __init__(
        self, loader: InputLoader, steps: int | None = None, checkpoint_steps: int | Schedule | None = None
    ) -> None:
        export_input_function(loader)
        self.steps = loader.steps if steps is None else steps
        self.can_extend = False
        every = configuration().checkpoint_steps if checkpoint_steps is None else checkpoint_steps
        self.checkpoints = checkpoint_steps_of(every)
        self.completed, self.ended = 0, False
        self.rates = RateTracker(_SMOOTHING, from_first=True)
        self.summaries: dict[str, Any] = {}
        self.writer: Any = None
        self._batch_size = loader.batch_size

    def batches(self) -> Iterator[Any]:
        """One for each step."""
        raise NotImplementedError

    def count_step(self) -> None:
        """The step of the next turn is done."""
        self.completed += 1
        self.rates.add(self._batch_size)
        profiler = ProfilerRegistry.get_profiler()
        if profiler is not None:
            profiler.step(self.completed)

    @property
    def number(self) -> int:
        """Number of the step of this turn: of a training among all that its state has behind it."""
        return steps_done() if self.trains else self.completed

    @property
    def trains(self) -> bool:
        """Whether its steps change a model."""
        raise NotImplementedError

    @property
    def at_checkpoint(self) -> bool:
        """Whether programs write their checkpoint behind this turn."""
        if self.checkpoints is None or not self.completed:
            return False
        last = self.completed == self.steps and not self.checkpoints.exact
        return last or self.checkpoints.match(self.completed)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor holds after the step of this turn."""
        return tensor

    def output(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return what the step of this turn gave for a tensor of the device; None: it returns no such one."""
        return None

    def suspend(self) -> None:
        """Another loop begins inside of this one."""

    def close(self) -> None:
        """The loop is done."""

    def leave(self) -> None:
        """The program leaves the loop early."""

    def abandon(self, error: BaseException | None) -> None:
        """The loop ends with an error."""
        self.ended = True


def record_unfinished(failed: Callable[[BaseException], None]) -> None:
    """The program leaves a loop here; `failed` is called if it ends by the error that has made it leave."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        Program.current().unfinished_loops.append((frame.f_code, frame.f_lasti, failed))


def report_unfinished(error: BaseException) -> None:
    """The program ends by this error."""
    instructions = set()
    trace = error.__traceback__
    while trace is not None:
        instructions.add((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    for code, instruction, failed in Program.current().unfinished_loops:
        if (code, instruction) in instructions:
            failed(error)
