"""Findings mended in the graph of a dataset, for a run, without a change of the source.

Every mend keeps the records: the same ones come out of an epoch, and of all shards together each once, but
those of an incomplete last batch where `drop_remainder` is mended. What cannot be mended so that this is
certain is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tensorflow as tf

from input_analyzer.findings.shuffling import BATCHES_IN_BUFFER
from input_analyzer.tf.epochs import source_size
from input_analyzer.tf.functions import traits
from input_analyzer.tf.nodes import constant, dataset_inputs, in_order, input_lists
from input_analyzer.tf.rebuild import as_dataset, copied, create, rebuild, structure
from input_analyzer.tf.shapes import as_attribute, inferred, shapes_of, with_shapes
from input_analyzer.tf.sizes import BATCHING, batch_facts, unknown_sizes

MENDABLE = frozenset(
    {
        *(
            "shard-missing",
            "drop-remainder-missing",
            "prefetch-missing",
            "prefetch-not-last",
            "prefetch-empty",
        ),
        *("parallel-calls-missing", "parallel-calls-fixed", "cycle-length-fixed", "flat-map-of-files"),
        *("parallel-reads-missing", "order-not-deterministic", "shuffle-buffer-small", "repeat-missing"),
    }
)
"""Findings that can be mended, where the pipeline allows it."""

_TRUE = {"deterministic": tf.compat.v1.AttrValue(s=b"true")}


@dataclass(frozen=True)
class Mended:
    """A dataset with mends, and what was done, one line each; the dataset itself where nothing was."""

    dataset: Any
    changes: tuple[str, ...]


def mend(dataset: Any, findings: Collection[str], workers: int = 1, index: int = 0) -> Mended:
    """Mends a dataset in the graph that it is in.

    Args:
        dataset: Made in a graph, not eagerly.
        findings: Identifiers of the findings to mend; others than those of MENDABLE have no effect.
        workers: Tasks that read input, for `shard-missing`.
        index: This task among them.
    """
    last = tf.data.experimental.to_variant(dataset).op
    functions = {f.signature.name: f for f in last.graph.as_graph_def().library.function}
    work = _Mender(frozenset(findings), functions, _batch_size(last))
    if "drop-remainder-missing" in findings:
        work.dropping = frozenset(unknown_sizes(last, functions).smaller)
    if "shard-missing" in findings and workers > 1:
        work.choose_shard(last, workers, index)
    if "repeat-missing" in findings:
        work.choose_repeat(last)
    tensor = rebuild(last, work.change)
    spec = dataset.element_spec
    if work.dropping:
        spec = with_shapes(spec, shapes_of(tensor.op))
    with last.graph.as_default():
        result = as_dataset(tensor, spec)
        if work.dropping and work.batch_size and not _is_known(spec):
            result = _fixed(result, spec, work.batch_size)
        if work.findings & {"prefetch-missing", "prefetch-not-last"}:
            result = result.prefetch(tf.data.AUTOTUNE)
            work.changes.append("prefetch(AUTOTUNE) at the end")
    return Mended(result, tuple(work.changes)) if work.changes else Mended(dataset, ())


def _batch_size(last: Any) -> int | None:
    for node in reversed(list(in_order(last))):
        if node.type.startswith(BATCHING):
            size = batch_facts(node).get("batch_size")
            return size if isinstance(size, int) else None
    return None


class _Mender:
    """The Change of all mends."""

    def __init__(self, findings: frozenset[str], functions: Any, batch_size: int | None) -> None:
        self.findings = findings
        self.functions = functions
        self.batch_size = batch_size
        self.changes: list[str] = []
        self.dropping: frozenset[str] = frozenset()
        """Names of the operations that are to leave out a smaller last batch."""
        self._sharded: tuple[str, int, int] | None = None
        self._repeated: str | None = None

    def choose_shard(self, last: Any, workers: int, index: int) -> None:
        """Finds the operation behind which every n-th element makes a shard of its own.

        That is the first source of the only chain, or its reader where there are fewer files than workers.
        Before it nothing may be in another order for every worker.
        """
        chain = _chain(last)
        if chain is None:
            return
        place = chain[0]
        if _is_files(place) and (source_size(place) or 0) < workers:
            place = next((n for n in chain[1:] if traits(n, self.functions).get("reads")), place)
        if any(node.type.startswith("Shuffle") for node in chain[: chain.index(place) + 1]):
            return
        self._sharded = (place.name, workers, index)

    def choose_repeat(self, last: Any) -> None:
        """Finds the operation to repeat: what is batched, so that epochs share a batch; else all."""
        chain = _chain(last)
        if chain is None:
            return
        before = last
        for node, later in pairwise(chain):
            if later.type.startswith(BATCHING):
                before = node
                break
        self._repeated = before.name

    def change(self, node: Any, datasets: list[Any]) -> Any:
        """What becomes of an operation."""
        tensor = self._replaced(node, datasets)
        if self._sharded and node.name == self._sharded[0]:
            tensor = copied(node, datasets) if tensor is None else tensor
            _, workers, index = self._sharded
            tensor = _wrapped(tensor, node, lambda dataset: dataset.shard(workers, index))
            self.changes.append(f"shard({workers}, {index}) behind {node.type}")
        if node.name == self._repeated:
            tensor = copied(node, datasets) if tensor is None else tensor
            tensor = _wrapped(tensor, node, lambda dataset: dataset.repeat())
            self.changes.append(f"repeat() behind {node.type}")
        return tensor

    def _replaced(self, node: Any, datasets: list[Any]) -> Any:
        parallel = self._parallel(node, datasets)
        return self._with_arguments(node, datasets) if parallel is None else parallel

    def _parallel(self, node: Any, datasets: list[Any]) -> Any:
        """A parallel operation in the place of one that is not; None where it stays as it is."""
        if node.type == "MapDataset" and "parallel-calls-missing" in self.findings:
            return self._parallel_map(node, datasets)
        if node.type == "InterleaveDataset" and "parallel-calls-missing" in self.findings:
            return self._parallel_interleave(node, datasets, input_lists(node)["cycle_length"][0])
        of_files = self.findings & {"flat-map-of-files", "parallel-reads-missing"}
        if node.type == "FlatMapDataset" and of_files and traits(node, self.functions).get("reads"):
            return self._parallel_interleave(node, datasets, _auto())
        return None

    def _parallel_map(self, node: Any, datasets: list[Any]) -> Any:
        does = traits(node, self.functions)
        # Random numbers would come in another order, and Python does not run side by side.
        if does.get("random") or does.get("python") or does.get("free"):
            return None
        self.changes.append("map(num_parallel_calls=AUTOTUNE)")
        inputs = [*datasets, *input_lists(node)["other_arguments"], _auto()]
        return create(node.graph, "ParallelMapDatasetV2", inputs, self._kept(node, datasets) | _TRUE)

    def _parallel_interleave(self, node: Any, datasets: list[Any], cycle: Any) -> Any:
        if traits(node, self.functions).get("random"):
            return None
        lists = input_lists(node)
        block = lists.get("block_length", [_one()])[0]
        self.changes.append("interleave(num_parallel_calls=AUTOTUNE)")
        inputs = [*datasets, *lists["other_arguments"], cycle, block, _auto(), _auto(), _auto()]
        attributes = self._kept(node, datasets) | _TRUE
        return create(node.graph, "ParallelInterleaveDatasetV4", inputs, attributes)

    def _with_arguments(self, node: Any, datasets: list[Any]) -> Any:
        """The same operation with other arguments; None where none changes."""
        arguments: dict[str, Any] = {}
        lists = input_lists(node)
        if node.name in self.dropping:
            arguments["drop_remainder"] = tf.constant(True)
        if "parallel-calls-fixed" in self.findings and constant(node, "num_parallel_calls") not in (None, -1):
            arguments["num_parallel_calls"] = tf.constant(-1, lists["num_parallel_calls"][0].dtype)
        is_interleave = node.type.startswith("ParallelInterleave")
        if "cycle-length-fixed" in self.findings and is_interleave and constant(node, "cycle_length") != -1:
            arguments["cycle_length"] = _auto()
        is_prefetch = node.type == "PrefetchDataset"
        if "prefetch-empty" in self.findings and is_prefetch and constant(node, "buffer_size") == 0:
            arguments["buffer_size"] = _auto()
        if "shuffle-buffer-small" in self.findings and node.type.startswith("ShuffleDataset"):
            wanted = BATCHES_IN_BUFFER * (self.batch_size or 1)
            if (constant(node, "buffer_size") or wanted) < wanted:
                arguments["buffer_size"] = tf.constant(wanted, tf.int64)
        attributes = self._attributes(node, datasets)
        if "order-not-deterministic" in self.findings and _is_in_any_order(node):
            attributes.update(_TRUE if "deterministic" in attributes else _NOT_SLOPPY)
            self.changes.append(f"{node.type} in the order of its input")
        elif not arguments and attributes["output_shapes"] == node.node_def.attr["output_shapes"]:
            return None
        self.changes += [f"{node.type}: {name}={tf.get_static_value(v)}" for name, v in arguments.items()]
        return create(node.graph, node.type, _inputs(node, datasets, arguments), attributes)

    def _attributes(self, node: Any, datasets: list[Any]) -> dict[str, Any]:
        """Those of an operation; where batches have got a size that is known, what it is from there on."""
        attributes = dict(node.node_def.attr)
        if node.name in self.dropping:
            size = batch_facts(node).get("batch_size")
            shapes = [_first_size(shape, size) for shape in shapes_of(node)]
        elif self.dropping and datasets:
            shapes = inferred(node, [shapes_of(tensor.op) for tensor in datasets], self.functions)
        else:
            return attributes
        return attributes | {"output_shapes": as_attribute(shapes)}

    def _kept(self, node: Any, datasets: list[Any]) -> dict[str, Any]:
        """Attributes that an operation shares with the parallel one that takes its place."""
        attributes = self._attributes(node, datasets)
        return {name: attributes[name] for name in ("f", "Targuments", "output_types", "output_shapes")}


_NOT_SLOPPY = {"sloppy": tf.compat.v1.AttrValue(b=False)}


def _is_in_any_order(node: Any) -> bool:
    attributes = node.node_def.attr
    return bool(attributes["deterministic"].s == b"false" or attributes["sloppy"].b)


def _inputs(node: Any, datasets: list[Any], changed: dict[str, Any]) -> list[Any]:
    fresh = iter(datasets)
    inputs: list[Any] = []
    for name, tensors in input_lists(node).items():
        for tensor in tensors:
            is_dataset = tensor.dtype == tf.variant
            inputs.append(next(fresh) if is_dataset else changed.get(name, tensor))
    return inputs


def _auto() -> Any:
    return tf.constant(tf.data.AUTOTUNE, tf.int64)


def _one() -> Any:
    return tf.constant(1, tf.int64)


def _wrapped(tensor: Any, node: Any, call: Any) -> Any:
    with tensor.graph.as_default():
        return tf.data.experimental.to_variant(call(as_dataset(tensor, structure(node))))


def _chain(last: Any) -> list[Any] | None:
    """The operations from the source on; None where several datasets are joined."""
    chain = [last]
    while inputs := dataset_inputs(chain[0]):
        if len(inputs) > 1:
            return None
        chain.insert(0, inputs[0])
    return chain


def _is_files(source: Any) -> bool:
    return bool(source.type.startswith("TensorSlice") and structure(source)[0].dtype == tf.string)


def _first_size(shape: Any, size: Any) -> Any:
    """A shape with another first size, where that is known."""
    return shape if size is None or not shape.rank else tf.TensorShape([size, *shape[1:]])


def _is_known(spec: Any) -> bool:
    return all(part.shape.is_fully_defined() for part in tf.nest.flatten(spec) if hasattr(part, "shape"))


def _fixed(dataset: Any, spec: Any, batch_size: int) -> Any:
    """Says, and checks, that an unknown first size is that of the batch.

    Only where TensorFlow cannot infer it, as behind a function of Python.
    """

    def shape(part: Any) -> Any:
        return _first_size(part.shape, batch_size if part.shape.rank and part.shape[0] is None else None)

    def check(*parts: Any) -> Any:
        element = parts if len(parts) > 1 else parts[0]
        return tf.nest.map_structure(lambda part: tf.ensure_shape(part, shape(part)), element)

    return dataset.map(check)
