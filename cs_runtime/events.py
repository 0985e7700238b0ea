"""What a training shows in TensorBoard: loss, rates and the user's scalar summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from cs_runtime.progress import Pace

if TYPE_CHECKING:
    from cs_system.client import StepOutputs

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
