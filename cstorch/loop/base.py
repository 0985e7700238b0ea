"""The base class of loops, and the report of loops that an error of the program has left."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from cs_runtime import exits, terminal
from cs_runtime.progress import log_unsaved_steps
from cs_toolkit.source_files import is_user_file
from cstorch.errors import essence
from cstorch.input.analysis import export_input_function
from cstorch.input.loader import InputLoader
from cstorch.iterations import Schedule, checkpoint_steps_of
from cstorch.loop.rates import RateTracker
from cstorch.profiler import ProfilerRegistry
from cstorch.program import Program, configuration
from cstorch.tracing.state import steps_done

# A checkpoint that the program writes with torch.save is not noticed.
_SAVE_ADVICE = (
    "call cstorch.save after the loop, or let the last step be one of checkpoint_steps and save at these; "
    "a program that saves with torch.save can ignore this"
)
_SMOOTHING = 0.6  # weight of the newest rate: outputs of several steps come from the system together


class ProgramLoop:
    """A program's loop over batches, on the CS system or on this CPU.

    Args:
        loader: The input.
        steps: Number of steps; None for those of the loader.
        checkpoint_steps: When checkpoints may be written, in addition to the last step; None for the
            configured interval.

    Attributes:
        steps: Number of steps.
        can_extend: The program may add steps to a run that has begun.
        checkpoints: When checkpoints are written; None for never.
        completed: Number of steps whose outputs the program has.
        ended: The loop has ended, or never ran because the program is only compiled.
        rates: Throughput of the loop.
        summaries: Summaries of the last step, by name.
        writer: Event writer that gets every summary; None if the program writes them.
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
        """Yield a batch for each step."""
        raise NotImplementedError

    def count_step(self) -> None:
        """Record that another step has completed."""
        self.completed += 1
        self.rates.add(self._batch_size)
        profiler = ProfilerRegistry.get_profiler()
        if profiler is not None:
            profiler.step(self.completed)

    @property
    def number(self) -> int:
        """Number of the last step: of a training run counted from its very first step."""
        return steps_done() if self.trains else self.completed

    @property
    def trains(self) -> bool:
        """True if the steps change a model."""
        raise NotImplementedError

    @property
    def at_checkpoint(self) -> bool:
        """True if programs write a checkpoint after the last step."""
        if self.checkpoints is None or not self.completed:
            return False
        last = self.completed == self.steps and not self.checkpoints.exact
        return last or self.checkpoints.match(self.completed)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value of a tensor after the last step."""
        return tensor

    def output(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the last step's value of a tensor that the step returns; None for other tensors."""
        return None

    def suspend(self) -> None:
        """Give up the system, because another loop begins inside this one."""

    def close(self) -> None:
        """End the loop after its last step."""

    def leave(self) -> None:
        """End the loop where the program leaves it early."""

    def abandon(self, error: BaseException | None) -> None:
        """End the loop after an error."""
        self.ended = True


def set_up_reports() -> None:
    """Configure the log, and report the error that ends the program, also to the loops that it has left."""
    terminal.configure_logging("cstorch")
    exits.report_at_exit(report_unfinished, essence)
    atexit.unregister(log_unsaved_steps)  # this is called for each loop
    atexit.register(log_unsaved_steps, _SAVE_ADVICE)


# Python closes an iterator that an error leaves just as it does after `break`, before anyone sees the error.
# Only when the program ends is it known which one it was: the traceback of the error then contains the
# instruction at which the loop's frame was when the iterator was closed.


def record_unfinished(report: Callable[[BaseException], None]) -> None:
    """Record that the program leaves a loop here.

    Args:
        report: Called with the error if the program ends with one that has come through this place.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        Program.current().unfinished_loops.append((frame.f_code, frame.f_lasti, report))


def report_unfinished(error: BaseException) -> None:
    """Report the error that ends the program to the loops that it has left."""
    instructions = set()
    trace = error.__traceback__
    while trace is not None:
        instructions.add((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    for code, instruction, report in Program.current().unfinished_loops:
        if (code, instruction) in instructions:
            report(error)
