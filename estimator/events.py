"""Event files for TensorBoard."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from cs_runtime.errors import ModelDirError

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

    def graph(self, graph: Any) -> None:
        """Writes a graph, for TensorBoard's page of graphs."""
        self._open().add_graph(graph)

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
