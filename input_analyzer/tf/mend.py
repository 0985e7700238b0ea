"""Findings mended in the graph of a dataset, for a run, without a change of the source.

Every mend keeps the records: the same ones come out of an epoch, and of all shards together each once, but
those of an incomplete last batch where `drop_remainder` is mended. What cannot be mended so that this is
certain is left as it is, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from input_analyzer.findings.expected_gains import files_at_once, most_cpus_for
from input_analyzer.findings.shuffling import BATCHES_IN_BUFFER
from input_analyzer.tf.functions import library_of, traits
from input_analyzer.tf.half_sharded import without_shard
from input_analyzer.tf.insertion_places import TABLE, repeat_place, shard_place, starved
from input_analyzer.tf.nodes import constant, dataset_inputs, in_order, input_lists, is_dataset
from input_analyzer.tf.origin import origin
from input_analyzer.tf.rebuild import as_dataset, copied, create, rebuild, structure
from input_analyzer.tf.record_path import record_path
from input_analyzer.tf.records_kept import (
    Effect,
    allow_any_order,
    call,
    called,
    called_function,
    in_any_order,
    objection,
    options_allow_any_order,
    trouble,
)
from input_analyzer.tf.shapes import as_attribute, inferred, shapes_of, with_first_size, with_shapes
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
class Left:
    """A finding that is left as it is, as nobody can tell that its mend keeps the records.

    Attributes:
        finding: Its identifier.
        source: The user's line, "file:line"; None for all findings of that name.
        op: The call there; None for any.
        reason: A sentence without its full stop.
    """

    finding: str
    source: str | None
    op: str | None
    reason: str

    def speaks_of(self, identifier: str, op: str, source: str | None) -> bool:
        """Whether it is about a finding."""
        return self.finding == identifier and self.source in (None, source) and self.op in (None, op)


@dataclass(frozen=True)
class Mended:
    """A dataset with mends, and what was done, one line each; the dataset itself where nothing was.

    Attributes:
        dataset: The dataset.
        changes: What was done.
        left: What was not done.
    """

    dataset: Any
    changes: tuple[str, ...]
    left: tuple[Left, ...] = field(default=(), compare=False)


def mend(dataset: Any, findings: Collection[str], workers: int = 1, index: int = 0) -> Mended:
    """Mends a dataset in the graph that it is in.

    Args:
        dataset: Made in a graph, not eagerly.
        findings: Identifiers of the findings to mend; others than those of MENDABLE have no effect.
        workers: Tasks that read input, for `shard-missing`.
        index: This task among them.
    """
    last = tf.data.experimental.to_variant(dataset).op
    functions = library_of(last)
    work = _Mender(frozenset(findings), functions, last)
    if "drop-remainder-missing" in findings:
        work.choose_batches()
    if "repeat-missing" in findings:
        work.repeated = repeat_place(last, functions)[0].name
    if "shard-missing" in findings and workers > 1:
        work.choose_shard(workers, index)
    tensor = rebuild(last, work.change)
    spec = dataset.element_spec
    if work.dropping:
        spec = with_shapes(spec, shapes_of(tensor.op))
    with last.graph.as_default():
        result = as_dataset(tensor, spec)
        if work.drops_all and work.batch_size and not _is_known(spec):
            result = _fixed(result, spec, work.batch_size)
        if work.findings & {"prefetch-missing", "prefetch-not-last"}:
            result = result.prefetch(tf.data.AUTOTUNE)
            work.changes.append("prefetch(AUTOTUNE) at the end")
    left = tuple(dict.fromkeys(work.left))
    return Mended(result, tuple(work.changes), left) if work.changes else Mended(dataset, (), left)


def _batch_size(last: Any) -> int | None:
    for node in reversed(list(in_order(last))):
        if node.type.startswith(BATCHING):
            size = batch_facts(node).get("batch_size")
            return size if isinstance(size, int) else None
    return None


class _Mender:
    """The Change of all mends."""

    def __init__(self, findings: frozenset[str], functions: Any, last: Any) -> None:
        self.findings = findings
        self.functions = functions
        self.last = last
        self.batch_size = _batch_size(last)
        self.changes: list[str] = []
        self.left: list[Left] = []
        self.dropping: frozenset[str] = frozenset()
        """Names of the operations that are to leave out a smaller last batch."""
        self.drops_all = False
        self.repeated: str | None = None
        self._sharded: tuple[str, int, int] | None = None
        self._any_order = options_allow_any_order(last)

    def choose_batches(self) -> None:
        """Finds the operations that are to leave out a smaller last batch."""
        unknown = unknown_sizes(self.last, self.functions)
        nodes = [node for node in in_order(self.last) if node.name in unknown.smaller]
        kept = [node for node in nodes if self._keeps("drop-remainder-missing", node, Effect.SHORTER)]
        self.dropping = frozenset(node.name for node in kept)
        self.drops_all = bool(kept) and len(kept) == len(nodes)
        for node in in_order(self.last):
            if node.name in unknown.smaller_within:
                self._leave("drop-remainder-missing", node, f"a function of {called(node)} makes the batches")

    def choose_shard(self, workers: int, index: int) -> None:
        """Finds the operation behind which every n-th element makes a shard of its own."""
        branch = without_shard(self.last, workers, index)
        place, reason = shard_place(self.last, workers, self.functions, branch)
        empty = place is not None and starved(
            place, self.last, workers, self.functions, self.dropping, self.repeated or ""
        )
        if place is None or empty:
            self.left.append(Left("shard-missing", None, None, empty or reason))
        else:
            self._sharded = (place.name, workers, index)

    def _keeps(self, finding: str, node: Any, effect: Effect) -> bool:
        """Whether a change keeps the records; where nobody knows, that is noted."""
        shared = self._sharded[0] if self._sharded else None
        reason = objection(node, self.last, effect, self.functions, shared)
        return reason is None or self._leave(finding, node, reason)

    def _leave(self, finding: str, node: Any, reason: str) -> bool:
        self.left.append(Left(finding, origin(node).source, called_function(node), reason))
        return False

    def change(self, node: Any, datasets: list[Any]) -> Any:
        """What becomes of an operation."""
        tensor = self._replaced(node, datasets)
        if self._sharded and node.name == self._sharded[0]:
            tensor = copied(node, datasets) if tensor is None else tensor
            _, workers, index = self._sharded
            tensor = _wrapped(tensor, node, lambda dataset: dataset.shard(workers, index))
            self.changes.append(f"shard({workers}, {index}) behind {call(node)}")
        if node.name == self.repeated:
            tensor = copied(node, datasets) if tensor is None else tensor
            tensor = _wrapped(tensor, node, lambda dataset: dataset.repeat())
            by_argument = called_function(node) == TABLE
            self.changes.append(
                call(node, {"num_epochs": None}) if by_argument else f"repeat() behind {call(node)}"
            )
        return tensor

    def _replaced(self, node: Any, datasets: list[Any]) -> Any:
        if node.type == "OptionsDataset" and "order-not-deterministic" in self.findings:
            return self._options_in_order(node, datasets)
        parallel = self._parallel(node, datasets)
        return self._with_arguments(node, datasets) if parallel is None else parallel

    def _options_in_order(self, node: Any, datasets: list[Any]) -> Any:
        """Options that keep the order of elements in the place of those that do not."""
        if not allow_any_order(node):
            return None
        options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
        options.deterministic = True
        self.changes.append("options.deterministic = True")
        text = tf.compat.v1.AttrValue(s=options.SerializeToString())
        attributes = self._attributes(node, datasets) | {"serialized_options": text}
        return create(node.graph, node.type, _inputs(node, datasets, {}), attributes)

    def _parallel(self, node: Any, datasets: list[Any]) -> Any:
        """A parallel operation in the place of one that is not; None where it stays as it is."""
        if node.type == "MapDataset" and "parallel-calls-missing" in self.findings:
            return self._parallel_map(node, datasets)
        if node.type == "InterleaveDataset" and "parallel-calls-missing" in self.findings:
            cycle = input_lists(node)["cycle_length"][0]
            return self._parallel_interleave("parallel-calls-missing", node, datasets, cycle)
        of_files = sorted(self.findings & {"flat-map-of-files", "parallel-reads-missing"})
        if node.type == "FlatMapDataset" and of_files and traits(node, self.functions).get("reads"):
            return self._parallel_interleave(of_files[0], node, datasets, _files())
        return None

    def _parallel_map(self, node: Any, datasets: list[Any]) -> Any:
        if traits(node, self.functions).get("free") or not self._calls_are_free(
            "parallel-calls-missing", node
        ):
            return None
        self.changes.append("map(num_parallel_calls=AUTOTUNE)")
        inputs = [*datasets, *input_lists(node)["other_arguments"], _auto()]
        return create(node.graph, "ParallelMapDatasetV2", inputs, self._kept(node, datasets) | _TRUE)

    def _calls_are_free(self, finding: str, node: Any) -> bool:
        """Whether the calls of a function may run side by side; where nobody knows, that is noted."""
        reason = trouble(node, self.functions)
        return reason is None or self._leave(finding, node, f"{called(node)} {reason}")

    def _parallel_interleave(self, finding: str, node: Any, datasets: list[Any], cycle: Any) -> Any:
        # With inner datasets that never end, those that are read first would be all.
        if not self._calls_are_free(finding, node) or not self._keeps(finding, node, Effect.ORDER):
            return None
        lists = input_lists(node)
        block = lists.get("block_length", [_one()])[0]
        self.changes.append("interleave(num_parallel_calls=AUTOTUNE)")
        inputs = [*datasets, *lists["other_arguments"], cycle, block, _auto(), _auto(), _auto()]
        attributes = self._kept(node, datasets) | _TRUE
        return create(node.graph, "ParallelInterleaveDatasetV4", inputs, attributes)

    def _with_arguments(self, node: Any, datasets: list[Any]) -> Any:
        """The same operation with other arguments; None where none changes."""
        arguments = self._parallel_arguments(node)
        if node.name in self.dropping:
            arguments["drop_remainder"] = tf.constant(True)
        is_prefetch = node.type == "PrefetchDataset"
        if "prefetch-empty" in self.findings and is_prefetch and constant(node, "buffer_size") == 0:
            arguments["buffer_size"] = _auto()
        if "shuffle-buffer-small" in self.findings and node.type.startswith("ShuffleDataset"):
            wanted = BATCHES_IN_BUFFER * (self.batch_size or 1)
            small = (constant(node, "buffer_size") or wanted) < wanted and not self._reads_batches(node)
            if small and self._keeps("shuffle-buffer-small", node, Effect.ORDER):
                arguments["buffer_size"] = tf.constant(wanted, tf.int64)
        attributes = self._attributes(node, datasets)
        if "order-not-deterministic" in self.findings and in_any_order(node):
            # One of the orders that there may be without the mend, too, whatever stands behind.
            attributes.update(_TRUE if "deterministic" in attributes else _NOT_SLOPPY)
            self.changes.append(f"{call(node)} in the order of its input")
        elif not arguments and attributes["output_shapes"] == node.node_def.attr["output_shapes"]:
            return None
        self.changes += [call(node, {name: tf.get_static_value(v)}) for name, v in arguments.items()]
        return create(node.graph, node.type, _inputs(node, datasets, arguments), attributes)

    def _reads_batches(self, node: Any) -> bool:
        batched = record_path(self.last, self.functions).batched
        return any(other.name in batched for other in dataset_inputs(node))

    def _parallel_arguments(self, node: Any) -> dict[str, Any]:
        """Those that say how many calls run at once, or how many inner datasets are read."""
        arguments: dict[str, Any] = {}
        reads = "Interleave" in node.type
        fixed = constant(node, "num_parallel_calls") not in (None, -1)
        if "parallel-calls-fixed" in self.findings and fixed:
            reorders = reads or in_any_order(node, by_options=self._any_order)
            if self._calls_are_free("parallel-calls-fixed", node) and (
                not reorders or self._keeps("parallel-calls-fixed", node, Effect.ORDER)
            ):
                kind = input_lists(node)["num_parallel_calls"][0].dtype
                arguments["num_parallel_calls"] = tf.constant(-1, kind)
        tunable = node.type.startswith("ParallelInterleave") and constant(node, "cycle_length") != -1
        if (
            "cycle-length-fixed" in self.findings
            and tunable
            and _reads_more(constant(node, "cycle_length"))
            and self._calls_are_free("cycle-length-fixed", node)
            and self._keeps("cycle-length-fixed", node, Effect.ORDER)
        ):
            arguments["cycle_length"] = _files()
        return arguments

    def _attributes(self, node: Any, datasets: list[Any]) -> dict[str, Any]:
        """Those of an operation; where batches have got a size that is known, what it is from there on."""
        attributes = dict(node.node_def.attr)
        if node.name in self.dropping:
            size = batch_facts(node).get("batch_size")
            shapes = [with_first_size(shape, size) for shape in shapes_of(node)]
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


def _inputs(node: Any, datasets: list[Any], changed: dict[str, Any]) -> list[Any]:
    fresh = iter(datasets)
    inputs: list[Any] = []
    for name, tensors in input_lists(node).items():
        for tensor in tensors:
            inputs.append(next(fresh) if is_dataset(tensor) else changed.get(name, tensor))
    return inputs


def _files() -> Any:
    """How many files an interleave of this process is to read at once."""
    return tf.constant(files_at_once(_cpus()), tf.int64)


def _reads_more(length: int | None) -> bool:
    """Whether that is more than a number that is written."""
    if length is None:
        return False
    wanted = files_at_once(_cpus())
    return _cpus() > most_cpus_for(length) if wanted == tf.data.AUTOTUNE else length < wanted


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _auto() -> Any:
    return tf.constant(tf.data.AUTOTUNE, tf.int64)


def _one() -> Any:
    return tf.constant(1, tf.int64)


def _wrapped(tensor: Any, node: Any, call: Any) -> Any:
    with tensor.graph.as_default():
        return tf.data.experimental.to_variant(call(as_dataset(tensor, structure(node))))


def _is_known(spec: Any) -> bool:
    return all(part.shape.is_fully_defined() for part in tf.nest.flatten(spec) if hasattr(part, "shape"))


def _fixed(dataset: Any, spec: Any, batch_size: int) -> Any:
    """Says, and checks, that an unknown first size is that of the batch.

    Only where TensorFlow cannot infer it, as behind a function of Python.
    """

    def shape(part: Any) -> Any:
        return with_first_size(part.shape, batch_size if part.shape.rank and part.shape[0] is None else None)

    def check(*parts: Any) -> Any:
        element = parts if len(parts) > 1 else parts[0]
        return tf.nest.map_structure(lambda part: tf.ensure_shape(part, shape(part)), element)

    return dataset.map(check)
