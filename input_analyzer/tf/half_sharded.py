"""Datasets that are joined, of which workers share some out and read another one whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from input_analyzer.findings.endings import ENDLESS
from input_analyzer.tf.epochs import source_size
from input_analyzer.tf.fingerprint import digest_of
from input_analyzer.tf.functions import PYTHON, functions_of
from input_analyzer.tf.nodes import constant, dataset_inputs, in_order, input_lists, is_dataset, kind_of
from input_analyzer.tf.record_path import CHOOSING, random_numbers
from input_analyzer.tf.records_kept import is_range, reads_all

_JOINING = frozenset({"ZipDataset", "ConcatenateDataset", *CHOOSING})
_NO_PART = frozenset({"seed", "seed2", "seed_generator", "filename", "path"})
"""Arguments that may be other ones for every worker without any of them reading a part: orders, caches."""


@dataclass(frozen=True)
class Branch:
    """A dataset among several that are joined.

    Attributes:
        end: The operation that delivers it.
        joins: Those that join it with others, the nearest first.
    """

    end: Any
    joins: tuple[Any, ...]


def read_whole(first: Any, last: Any) -> tuple[Branch, ...]:
    """The datasets that every worker reads whole, though those that they are joined with are shared out.

    What is not known to be the same for all workers, as what Python delivers, is none of them, nor are
    numbers that records are paired with or chosen by.

    Args:
        first: The operation that delivers to the first of several workers.
        last: That which delivers to the last one.
    """
    changed = changed_arguments(first, last)
    shared = set(changed)
    for node in in_order(first):
        if any(other.name in shared for other in dataset_inputs(node)):
            shared.add(node.name)
    functions = _library(first.graph)
    beside = random_numbers(first)
    found: dict[str, Branch] = {}
    waiting, seen = [first], set()
    while waiting:
        node = waiting.pop()
        # Behind a shard of both it does not matter what each of them is.
        if node.name in seen or node.name in changed or node.name not in shared:
            continue
        seen.add(node.name)
        waiting += dataset_inputs(node)
        for other in _joined(node) if node.type in _JOINING else ():
            if not ({other.name} & (shared | beside) or _calls_python(other, functions)):
                found.setdefault(other.name, Branch(other, (node,)))
    return tuple(found.values())


def without_shard(last: Any, workers: int, index: int) -> Branch | None:
    """The dataset without a shard among those that are joined, each of them to its end.

    It is told by the graph of one worker alone, so it has to be the only one, and all others have to have the
    shard of that worker: what has none may have been shared out before it became a dataset.

    Args:
        last: The operation that delivers.
        workers: Tasks that read input.
        index: This task among them.
    """
    branches = list(_branches(last))
    shards = [[node for node in in_order(branch.end) if _is_shard(node)] for branch in branches]
    bare = [branch for branch, own in zip(branches, shards, strict=True) if not own]
    others = [(constant(node, "num_shards"), constant(node, "index")) for own in shards for node in own]
    return bare[0] if len(bare) == 1 and others and {*others} == {(workers, index)} else None


def _branches(last: Any) -> Iterator[Branch]:
    waiting = [Branch(last, ())]
    while waiting:
        branch = waiting.pop()
        join = next((node for node in _chain(branch.end) if _is_shard(node) or keeps_parts(node)), None)
        if join is None or _is_shard(join):
            yield branch
        else:
            waiting += [Branch(other, (join, *branch.joins)) for other in reversed(_joined(join))]


def keeps_parts(node: Any) -> bool:
    """Whether an operation delivers all records of what it joins, whatever part of them each dataset is."""
    return node.type == "ConcatenateDataset" or (node.type in CHOOSING and reads_all(node))


def _chain(last: Any) -> Iterator[Any]:
    """An operation and what it reads, up to and with the first that reads several datasets."""
    node = last
    yield node
    while len(inputs := dataset_inputs(node)) == 1:
        node = inputs[0]
        yield node


def _is_shard(node: Any) -> bool:
    return kind_of(node.type) == "ShardDataset"


def _joined(node: Any) -> list[Any]:
    """The datasets that an operation joins, without numbers and what is the same for all records."""
    inputs = dataset_inputs(node)
    if node.type in CHOOSING:
        return inputs[1:]
    if node.type != "ZipDataset":
        return inputs
    return [other for other in inputs if not (is_range(other) or all(map(_is_no_data, in_order(other))))]


def _is_no_data(node: Any) -> bool:
    """Whether an operation is no source of records: it reads others, or counts or repeats without end."""
    if dataset_inputs(node):
        return True
    return node.type == "TensorDataset" or (source_size(node) or 0) >= ENDLESS


def changed_arguments(first: Any, last: Any) -> set[str]:
    """Names of the dataset operations of one graph that have other arguments than those of another one.

    Seeds and paths of caches do not count.

    Args:
        first: The operation that delivers.
        last: That of another call of the same function.
    """
    digests = Arguments(first.graph), Arguments(last.graph)
    changed: set[str] = set()
    seen: set[str] = set()
    waiting = [(first, last)]
    while waiting:
        pair = waiting.pop()
        node, other = pair
        if node.name in seen:
            continue
        seen.add(node.name)
        own, its = (dataset_inputs(one) for one in pair)
        same = node.type == other.type and len(own) == len(its)
        if same and digests[0].of(node) == digests[1].of(other):
            waiting += zip(own, its, strict=True)
        else:
            changed.add(node.name)
            waiting += zip(own, its, strict=True) if same else ()
    return changed


class Arguments:
    """Digests of what the dataset operations of a graph are given beside the datasets that they read."""

    def __init__(self, graph: Any) -> None:
        self._functions = _library(graph)

    def of(self, node: Any) -> str:
        """That of an operation; without names, and without seeds and paths of caches."""
        parts = [digest_of([node.node_def], without=_NO_PART)]
        parts += sorted(digest_of(inner.node_def) for inner in functions_of(node, self._functions))
        for name, tensors in input_lists(node).items():
            if name not in _NO_PART:
                parts += [_computed(tensor) for tensor in tensors if not is_dataset(tensor)]
        return hashlib.sha256("".join(parts).encode()).hexdigest()


def _computed(tensor: Any) -> str:
    """A digest of all operations that a tensor is computed by."""
    found: dict[str, Any] = {}
    waiting = [tensor.op]
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found[operation.name] = operation.node_def
            waiting += [other.op for other in operation.inputs if not is_dataset(other)]
    return digest_of(found.values())


def _calls_python(last: Any, functions: Mapping[str, Any]) -> bool:
    nodes = list(in_order(last))
    within = (inner.op for node in nodes for one in functions_of(node, functions) for inner in one.node_def)
    return bool(PYTHON & {*(node.type for node in nodes), *within})


def _library(graph: Any) -> Mapping[str, Any]:
    return {function.signature.name: function for function in graph.as_graph_def().library.function}
