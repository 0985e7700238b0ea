"""Event files for TensorBoard: scalars, results of evaluations, and the summaries of a model."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import count
from math import gcd
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from cs_runtime.errors import ModelDirError
from cs_runtime.progress import SUMMARY_PREFIX

log = logging.getLogger("estimator")

# Maximum number of elements in a histogram; of a larger tensor a step outputs evenly spaced elements.
HISTOGRAM_ELEMENTS = 16_384

# Prefix of the names of step outputs for summaries of tensors: histograms, images and others.
TENSOR_SUMMARIES = "output_shown/"

# Attribute with the number of samples in a summary, by the type of its operation.
_IMAGES = {"ImageSummary": "max_images", "AudioSummaryV2": "max_outputs"}

_file_numbers = itertools.count()


class EventWriter:
    """Writes scalars and serialized summaries to one event file, which is created with the first value."""

    # So a run that fails early leaves no event file.

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
        """Write a scalar for each tag."""
        import tensorflow as tf

        summary = tf.compat.v1.Summary(
            value=[tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        self._open().add_summary(summary, step)

    def add_summary(self, step: int, summary: bytes) -> None:
        """Write the output of a summary op."""
        self._open().add_summary(summary, step)

    def add_graph(self, graph: Any) -> None:
        """Write a graph, for TensorBoard's graph page."""
        self._open().add_graph(graph)

    def flush(self) -> None:
        """Flush the file."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the file."""
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
            # The writer cannot be created under eager execution.
            with tf.Graph().as_default():
                # TensorFlow names the file by the second: another writer would overwrite it.
                self._writer = tf.compat.v1.summary.FileWriter(
                    str(self._directory), filename_suffix=f".{os.getpid()}.{next(_file_numbers)}"
                )
        return self._writer


def report_evaluation(model_dir: Path, results: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Log the results of an evaluation and write them as events next to those of training."""
    step = int(results["global_step"])
    text = ", ".join(f"{key} = {results[key]}" for key in sorted(results))
    log.info("Saving dict for global step %d: %s", step, text)
    scalars = {key: float(value) for key, value in results.items() if np.ndim(value) == 0}
    scalars.pop("global_step")
    with EventWriter(eval_dir(model_dir, name)) as events:
        events.scalars(step, scalars)
    return dict(results)


def eval_dir(model_dir: Path, name: str | None) -> Path:
    """Return the directory of the events of an evaluation."""
    return model_dir / (f"eval_{name}" if name else "eval")


class Summaries:
    """The summaries in the collection of a model's graph, for a run on the CS system.

    A step outputs the values of a summary. The host of the chief computes the summary from them, by a copy of
    the program's own summary operation in a separate graph. This adds ops to the model's graph.

    Args:
        graph: The graph of the model.
        shows_tensors: Write summaries of tensors, besides those of scalars.

    Attributes:
        scalars: Name of a step output -> tensor: scalars, which are written without an operation.
        shown: Name of a step output -> tensor, for all other summaries.
    """

    def __init__(self, graph: Any, shows_tensors: bool = True) -> None:
        import tensorflow as tf

        self._shows_tensors = shows_tensors
        self.scalars: dict[str, Any] = {}
        self.shown: dict[str, Any] = {}
        self._host = tf.Graph()
        # Name of a summary -> its tensor, and its placeholders by step output.
        self._host_summaries: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._session: Any = None
        summaries = graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
        refused = [summary.op.name for summary in summaries if not self._add(summary.op)]
        if refused:
            log.warning(
                "not written in a run on the CS system, as their values or sizes are known on a host only: "
                "the summaries %s",
                ", ".join(refused),
            )

    def drop_dependents(self, nodes: Sequence[str]) -> list[str]:
        """Drop the summaries that depend on given operations.

        Args:
            nodes: Names of the operations.

        Returns:
            The names of the dropped summaries.
        """
        wanted = {**self.scalars, **self.shown}
        outputs = [name for name, tensor in wanted.items() if _needs(tensor, frozenset(nodes))]
        for name in outputs:
            self.scalars.pop(name, None)
            self.shown.pop(name, None)
        gone = [name for name, (_, fed) in self._host_summaries.items() if fed.keys() & set(outputs)]
        for name in gone:
            del self._host_summaries[name]
        scalars = [name.removeprefix(SUMMARY_PREFIX) for name in outputs if name.startswith(SUMMARY_PREFIX)]
        return scalars + gone

    def serialize(self, values: Mapping[str, np.ndarray]) -> list[bytes]:
        """Return the summaries, as TensorBoard reads them, of the outputs of a step, given by name."""
        import tensorflow as tf

        if self._session is None:
            self._session = tf.compat.v1.Session(graph=self._host)
        found = []
        for tensor, placeholders in self._host_summaries.values():
            feeds = {
                placeholder: np.asarray(values[name], placeholder.dtype.as_numpy_dtype)
                for name, placeholder in placeholders.items()
            }
            found.append(self._session.run(tensor, feeds))
        return found

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            self._session.close()

    def _add(self, op: Any) -> bool:
        """Add a summary; return False if it cannot be computed from outputs of a step."""
        import tensorflow as tf

        if op.type == "MergeSummary":
            return True  # the merged summaries are in the collection themselves
        if op.type == "ScalarSummary" and op.inputs[1].shape.rank == 0:
            tag = tf.get_static_value(op.inputs[0])
            if tag is not None:
                self.scalars[f"{SUMMARY_PREFIX}{_text(tag)}"] = op.inputs[1]
            return tag is not None
        if not self._shows_tensors:
            return True
        # Tags and the like are constants; None marks a tensor that the step has to output.
        inputs = [tf.get_static_value(tensor) for tensor in op.inputs]
        for tensor, value in zip(op.inputs, inputs, strict=True):
            # A step outputs numbers of a static shape only.
            is_numeric = tensor.dtype.is_numpy_compatible and tensor.dtype.name != "string"
            if value is None and not (is_numeric and tensor.shape.is_fully_defined()):
                return False
        placeholders: dict[str, Any] = {}
        with self._host.as_default():
            arguments = []
            for tensor, value in zip(op.inputs, inputs, strict=True):
                if value is not None:
                    arguments.append(tf.constant(value, tensor.dtype))
                    continue
                name = f"shown/{len(self.shown)}"
                self.shown[name] = _select_shown(op, tensor)
                placeholders[name] = tf.compat.v1.placeholder(tensor.dtype, self.shown[name].shape)
                arguments.append(placeholders[name])
            copy = self._host.create_op(
                op.type, arguments, [tf.string], attrs=dict(op.node_def.attr), name=op.name
            )
        self._host_summaries[op.name] = copy.outputs[0], placeholders
        return True


def _select_shown(op: Any, tensor: Any) -> Any:
    """Return the part of a tensor that its summary shows."""
    import tensorflow as tf

    with tensor.graph.as_default(), tf.name_scope(f"{op.name}/shown"):
        if op.type in _IMAGES:
            return tensor[: op.get_attr(_IMAGES[op.type])]
        elements = tensor.shape.num_elements()
        if op.type != "HistogramSummary" or elements <= HISTOGRAM_ELEMENTS:
            return tensor
        # The stride is coprime with the number of elements, so that samples come from all rows and channels.
        least = -(-elements // HISTOGRAM_ELEMENTS)
        stride = next(stride for stride in count(least) if gcd(stride, elements) == 1)
        return tf.reshape(tensor, [-1])[::stride]


def _needs(tensor: Any, nodes: frozenset[str]) -> bool:
    """Return True if a tensor depends on one of the named operations."""
    waiting, seen = [tensor.op], set()
    while waiting:
        op = waiting.pop()
        if op.name in nodes:
            return True
        if op.name not in seen:
            seen.add(op.name)
            waiting += [one.op for one in op.inputs]
    return False


def _text(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    return value.decode() if isinstance(value, bytes) else str(value)
