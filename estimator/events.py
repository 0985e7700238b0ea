"""Event files for TensorBoard."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cs_runtime.errors import ModelDirError
from cs_runtime.progress import Pace

if TYPE_CHECKING:
    from cs_system.client import StepOutputs

SUMMARY_PREFIX = "summary/"

_file_numbers = itertools.count()


class EventWriter:
    """Writes scalars and serialized summaries of a step into one event file.

    The file appears with the first value, so that a run that fails early leaves none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one scalar a tag."""
        import tensorflow as tf

        summary = tf.compat.v1.Summary(
            value=[tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        self._open().add_summary(summary, step)

    def serialized(self, step: int, summary: bytes) -> None:
        """Writes what a merged summary op put out."""
        self._open().add_summary(summary, step)

    def flush(self) -> None:
        """Brings everything written so far to the file."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            import tensorflow as tf

            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ModelDirError(self._directory, error) from error
            # The writer refuses to be made under eager execution.
            with tf.Graph().as_default():
                # TensorFlow names the file by the second: a second writer would overwrite the first's.
                self._writer = tf.compat.v1.summary.FileWriter(
                    str(self._directory), filename_suffix=f".{os.getpid()}.{next(_file_numbers)}"
                )
        return self._writer


class StepEvents:
    """Writes loss, rates and the user's scalar summaries every so many steps.

    It is the observer of a run on the CS system: `steps` takes the outputs of consecutive steps.

    Args:
        writer: Where to.
        every_steps: Step distance between two entries; 0 or None writes none.
        batch_size: Samples in one step.
    """

    def __init__(self, writer: EventWriter, every_steps: int | None, batch_size: int) -> None:
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
            rate = self._pace.mark(step, outputs)
            rates = {"global_step/sec": rate, "samples/sec": rate * self._batch_size}
            self._writer.scalars(step, {**values, **rates})


def _tag(output_name: str) -> str:
    """`output_loss` -> `loss`, `output_summary/<tag>` -> `<tag>`."""
    return output_name.removeprefix("output_").removeprefix(SUMMARY_PREFIX)
