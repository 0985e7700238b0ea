"""Where an operation may be put into a dataset graph so that every record comes as often as before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from input_analyzer.tf.emptiness import leaves_out
from input_analyzer.tf.epochs import length
from input_analyzer.tf.half_sharded import Branch
from input_analyzer.tf.listed_files import names_of
from input_analyzer.tf.nodes import dataset_inputs, in_order, kind_of
from input_analyzer.tf.rebuild import structure
from input_analyzer.tf.record_path import record_path
from input_analyzer.tf.records_kept import (
    FILTERS,
    Effect,
    called,
    called_function,
    is_range,
    numbers,
    objection,
    trouble,
    unsteady,
)
from input_analyzer.tf.records_kept import options_allow_any_order as allow_any_order
from input_analyzer.tf.sizes import BATCHING, batch_facts

_BATCH_BY_BATCH = frozenset({"MapDataset", "ParallelMapDataset", "PrefetchDataset", "OptionsDataset"})


def shard_place(
    last: Any, workers: int, functions: Mapping[str, Any], branch: Branch | None = None
) -> tuple[Any, str]:
    """The operation behind which every n-th element makes a shard.

    That is the first one that has elements for all workers, that all workers find the same elements behind,
    and behind which nothing depends on other elements: so behind a `take`, not before it, and behind a batch
    that makes records, as it is batched again. It stands behind all filters, too, and what makes nothing of
    some elements: one that asks for what goes with the position, as for even numbers, would leave nothing of
    the part of a worker.

    Args:
        last: The operation that delivers.
        workers: Tasks that read input.
        functions: The graph's library: FunctionDef by name.
        branch: The only one of the datasets joined that has no shard yet; None to share out all.

    Returns:
        The operation, or None and why there is none.
    """
    end, joins = (last, ()) if branch is None else (branch.end, branch.joins)
    within = {inner.op for function in functions.values() for inner in function.node_def}
    if any(map(_shards, within | {node.type for node in in_order(end)})):
        return None, "it has a shard already" if chain_of(end) else _PARTLY
    chain = chain_of(end)
    if chain is None:
        return None, "several datasets are joined: parts of each would make other pairs, or another order"
    any_order = allow_any_order(last)
    few, objected, count = "", "", None
    choosing = max((place for place, node in enumerate(chain) if leaves_out(node, functions)), default=-1)
    makers = record_path(last, functions).makers
    for position, node in enumerate(chain):
        if node.type.startswith(BATCHING) and node.name not in makers:
            return None, objected or few or f"{called(node)} makes batches before there are enough elements"
        unsure = unsteady(node, functions, count, any_order=any_order)
        if unsure is not None:
            return None, objected or unsure
        count = count_of(node, functions)
        if count is not None and count < workers:
            few = f"{called(node)} has {count} element{'' if count == 1 else 's'} for {workers} workers"
        elif not _has_datasets(node):
            found = objection(node, last, Effect.PART, functions, joins=joins)
            if found is None and position >= choosing:
                return node, ""
            objected = found or f"{called(chain[choosing])} chooses elements, maybe none of those of a worker"
    return None, objected or few


_PARTLY = (
    "of several datasets that are joined one more part may make other pairs, or be one of what has been "
    "shared out before"
)


def starved(
    place: Any,
    last: Any,
    workers: int,
    functions: Mapping[str, Any],
    dropping: Collection[str],
    repeated: str,
) -> str | None:
    """Why the part of a worker behind an operation would not fill one batch, where smaller ones are left out.

    Args:
        place: The operation behind which every worker gets its part.
        last: The operation that delivers.
        workers: Tasks that read input.
        functions: The graph's library: FunctionDef by name.
        dropping: Names of the batches that are to leave out smaller ones.
        repeated: Name of the operation that is to be repeated without end, or "".

    Returns:
        A sentence without its full stop; None where it would, or nobody knows.
    """
    whole, chain = count_of(place, functions), chain_of(last)
    if whole is None or chain is None or place.name == repeated:
        return None
    for node in chain[chain.index(place) + 1 :]:
        if node.type.startswith(BATCHING):
            facts = batch_facts(node)
            size = facts.get("batch_size")
            drops = facts.get("drop_remainder") is True or node.name in dropping
            each = whole // workers
            if drops and isinstance(size, int) and size > each:
                return f"{called(node)} makes batches of {size} alone, and a worker would have {each} records"
            return None
        if node.name == repeated or kind_of(node.type) not in _AT_MOST:
            return None
    return None


_AT_MOST = FILTERS | {
    *("MapDataset", "ParallelMapDataset", "ShuffleDataset", "CacheDataset", "PrefetchDataset"),
    *("OptionsDataset", "TakeDataset", "SkipDataset"),
}
"""They deliver no more elements than they read."""


def repeat_place(last: Any, functions: Mapping[str, Any]) -> tuple[Any, Any]:
    """Where a dataset is to be repeated.

    That is before its batches, so that epochs share one, where each batch is then worked on by itself; else
    at its end, but before a prefetch. A table that `make_csv_dataset` reads is repeated as that call itself
    does it where nothing behind it needs an end.

    Args:
        last: The operation that delivers.
        functions: The graph's library: FunctionDef by name.

    Returns:
        The operation to repeat, and the operation of the call that batches it: of `batch`, `padded_batch` or
        `make_csv_dataset`; None at the end.
    """
    table = _batch_of_table(last)
    if table is not None:
        return dataset_inputs(table)[0], table
    node, batch, end = last, None, last
    makers = record_path(last, functions).makers
    while len(inputs := dataset_inputs(node)) == 1:
        if node.name in makers:
            break  # its records would go on from one epoch to the next
        if node.type.startswith(BATCHING) and called_function(node) in _WRITTEN:
            batch = node
        elif not _is_by_batch(node, functions):
            break
        if node is end and called_function(node) in _LAST:
            end = inputs[0]
        node = inputs[0]
    return (end, None) if batch is None else (dataset_inputs(batch)[0], batch)


_WRITTEN = frozenset({"batch", "padded_batch"})
"""Calls before which a user can write another: a batch that a library makes within its own is none."""
_LAST = frozenset({"prefetch", "with_options"})
TABLE = "make_csv_dataset"
"""A call that has an argument for it, and batches behind that."""
_GOING_ON = (
    *("MapDataset", "ParallelMapDataset", "FilterDataset", "ParallelFilterDataset", "UnbatchDataset"),
    *("ShuffleDataset", "PrefetchDataset", "OptionsDataset", *BATCHING),
)
"""What stands behind a table may as well read it without end: it takes no part, keeps nothing."""


def _batch_of_table(last: Any) -> Any:
    node = last
    while node.type.startswith(_GOING_ON) and len(inputs := dataset_inputs(node)) == 1:
        if node.type.startswith(BATCHING) and called_function(node) == TABLE:
            return node
        node = inputs[0]
    return None


def _is_by_batch(node: Any, functions: Mapping[str, Any]) -> bool:
    return kind_of(node.type) in _BATCH_BY_BATCH and trouble(node, functions) is None


def chain_of(last: Any) -> list[Any] | None:
    """The operations from the source on, without the numbers of `enumerate`; None where some are joined."""
    chain = [last]
    while inputs := dataset_inputs(chain[0]):
        if len(inputs) > 1 and numbers(chain[0]):
            # The others are its numbers.
            inputs = [other for other in inputs if not is_range(other)] or inputs[-1:]
        if len(inputs) > 1:
            return None
        chain.insert(0, inputs[0])
    return chain


def count_of(node: Any, functions: Mapping[str, Any]) -> int | None:
    """Elements that an operation delivers; None where that is not known."""
    nodes = list(in_order(node))
    if len(nodes) == 1 and (names := names_of(node)) is not None:
        return len(names)
    whole = length(nodes, functions)
    return None if whole.endless else whole.epoch


def _shards(kind: str) -> bool:
    return kind_of(kind) in ("ShardDataset", "AutoShardDataset")


def _has_datasets(node: Any) -> bool:
    return any(spec.dtype == tf.variant for spec in structure(node))
