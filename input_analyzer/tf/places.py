"""Where an operation may be put into a dataset graph so that every record comes as often as before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from input_analyzer.tf.epochs import length
from input_analyzer.tf.listed import names_of
from input_analyzer.tf.nodes import dataset_inputs, in_order, kind_of
from input_analyzer.tf.rebuild import structure
from input_analyzer.tf.records_kept import Effect, called, objection, trouble, unsteady
from input_analyzer.tf.records_kept import options_allow_any_order as allow_any_order
from input_analyzer.tf.sizes import BATCHING

_BATCH_BY_BATCH = frozenset({"MapDataset", "ParallelMapDataset", "PrefetchDataset", "OptionsDataset"})


def shard_place(last: Any, workers: int, functions: Mapping[str, Any]) -> tuple[Any, str]:
    """The operation behind which every n-th element makes a shard.

    That is the first one that has elements for all workers, that all workers find the same elements behind,
    and behind which nothing depends on other elements: so behind a `take`, not before it.

    Args:
        last: The operation that delivers.
        workers: Tasks that read input.
        functions: The graph's library: FunctionDef by name.

    Returns:
        The operation, or None and why there is none.
    """
    within = {inner.op for function in functions.values() for inner in function.node_def}
    if any(map(_shards, within | {node.type for node in in_order(last)})):
        return None, "it has a shard already"
    chain = _chain(last)
    if chain is None:
        return None, "several datasets are joined: parts of each would make other pairs, or another order"
    any_order = allow_any_order(last)
    few, objected, count = "", "", None
    for position, node in enumerate(chain):
        if node.type.startswith(BATCHING):
            return None, objected or few or f"{called(node)} makes batches before there are enough elements"
        unsure = unsteady(node, functions, count, any_order=any_order)
        if unsure is not None:
            return None, objected or unsure
        count = _count(chain[: position + 1], functions)
        if count is not None and count < workers:
            few = f"{called(node)} has {count} element{'' if count == 1 else 's'} for {workers} workers"
        elif not _has_datasets(node):
            found = objection(node, last, Effect.PART, functions)
            if found is None:
                return node, ""
            objected = found
    return None, objected or few


def repeat_place(last: Any, functions: Mapping[str, Any]) -> Any:
    """The operation to repeat: what is batched, so that epochs share a batch, where each batch is then worked
    on by itself; else all."""
    chain = _chain(last) or [last]
    first = next((index for index, node in enumerate(chain) if node.type.startswith(BATCHING)), 0)
    plain = all(_is_by_batch(node, functions) for node in chain[first + 1 :])
    return chain[first - 1] if first and plain else last


def _is_by_batch(node: Any, functions: Mapping[str, Any]) -> bool:
    return kind_of(node.type) in _BATCH_BY_BATCH and trouble(node, functions) is None


def _chain(last: Any) -> list[Any] | None:
    """The operations from the source on; None where several datasets are joined."""
    chain = [last]
    while inputs := dataset_inputs(chain[0]):
        if len(inputs) > 1:
            return None
        chain.insert(0, inputs[0])
    return chain


def _count(nodes: list[Any], functions: Mapping[str, Any]) -> int | None:
    """Elements that the last one of a chain delivers; None where that is not known."""
    if len(nodes) == 1 and (names := names_of(nodes[0])) is not None:
        return len(names)
    whole = length(nodes, functions)
    return None if whole.endless else whole.epoch


def _shards(kind: str) -> bool:
    return kind_of(kind) in ("ShardDataset", "AutoShardDataset")


def _has_datasets(node: Any) -> bool:
    return any(spec.dtype == tf.variant for spec in structure(node))
