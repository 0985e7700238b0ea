"""Whether a change in a dataset graph keeps the records: all operations behind it, or before it, are asked.

What is known to deliver the same records is listed here. Behind anything else nothing is changed: it may
choose, number or pair elements by their order, as `take`, `scan`, `enumerate` and `zip` do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from input_analyzer.findings.endings import ENDLESS
from input_analyzer.pipeline import AUTOTUNE
from input_analyzer.tf.functions import PYTHON, functions_of, is_random, is_stateful
from input_analyzer.tf.nodes import constant, dataset_inputs, in_order, input_lists, is_dataset, kind_of
from input_analyzer.tf.origin import origin
from input_analyzer.tf.record_path import record_path
from input_analyzer.tf.shapes import shapes_of
from input_analyzer.tf.sizes import BATCHING


class Effect(Enum):
    """What a change does to what an operation delivers."""

    ORDER = "the same elements in another order"
    PART = "one of several parts, in the same order"
    SHORTER = "the same elements without the last one"


@dataclass(frozen=True)
class _State:
    """What has become of the elements at an operation.

    Attributes:
        effect: Against what they would be.
        fewer: Whether there are fewer of them.
        mixed: Whether what one record is depends on others, or on chance: batches, random numbers.
    """

    effect: Effect
    fewer: bool
    mixed: bool = False


_HANDING_ON = frozenset(
    {
        *("PrefetchDataset", "OptionsDataset", "ShuffleDataset", "ShuffleAndRepeatDataset", "RepeatDataset"),
        *("UnbatchDataset", "ParseExampleDataset"),
    }
)
"""They deliver all that they read, whatever its order."""
_MAPS = frozenset({"MapDataset", "ParallelMapDataset"})
FILTERS = frozenset({"FilterDataset", "ParallelFilterDataset"})
_INTERLEAVES = frozenset(
    {"InterleaveDataset", "ParallelInterleaveDataset", "LegacyParallelInterleaveDataset"}
)
NESTING = _INTERLEAVES | {"FlatMapDataset"}
_FORWARD = (
    _MAPS
    | FILTERS
    | {
        *("TakeDataset", "SkipDataset", "ScanDataset", "TakeWhileDataset", "ZipDataset", "WindowDataset"),
        *("FlatMapDataset", "UnbatchDataset", "PrefetchDataset", "OptionsDataset", "ParseExampleDataset"),
    }
)
"""What they deliver depends on what came before alone: without the last element it has the same begin."""
_SOURCES = frozenset(
    {
        *("TensorDataset", "TensorSliceDataset", "RangeDataset"),
        *("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CSVDataset"),
    }
)
_STEADY = _SOURCES | {
    *("TakeDataset", "SkipDataset", "RepeatDataset", "WindowDataset", "AssertCardinalityDataset"),
    *("UnbatchDataset", "PrefetchDataset", "OptionsDataset", "ParseExampleDataset"),
}
"""They deliver the same sequence wherever they read the same one."""
_CALLING_IN_ORDER = _MAPS | FILTERS | {"FlatMapDataset", "ScanDataset", "TakeWhileDataset"}
_WITHIN = (
    _SOURCES
    | _CALLING_IN_ORDER
    | NESTING
    | {
        *("TakeDataset", "SkipDataset", "BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset"),
        *("UnbatchDataset", "ZipDataset", "ConcatenateDataset", "WindowDataset", "PrefetchDataset"),
        *("OptionsDataset", "ParseExampleDataset", "ShardDataset", "ReduceDataset"),
    }
)
"""Dataset operations that make a function neither depend on other calls nor go on for ever."""
_READING = frozenset(
    {"LookupTableFind", "LookupTableSize", "LookupTableExport", "HashTable", "VarHandleOp", "ReadVariableOp"}
)
"""They look into what no function writes to, unless there is one of _WRITING."""
_WRITING = ("Assign", "LookupTableInsert", "LookupTableRemove", "LookupTableImport", "ResourceScatter")
_HARMLESS = frozenset({"Assert", "Print", "If", "While", "Case", "DatasetToSingleElement"})


def objection(
    place: Any,
    last: Any,
    effect: Effect,
    functions: Mapping[str, Any],
    shared: str | None = None,
    joins: Sequence[Any] = (),
) -> str | None:
    """Why other records may be delivered if what an operation delivers is changed.

    Args:
        place: The operation.
        last: The one that delivers to the user.
        effect: Of the change.
        functions: The graph's library: FunctionDef by name.
        shared: Name of an operation of which every worker is to get its part, by position.
        joins: Operations that join what is changed with parts of other datasets, and deliver all of both.

    Returns:
        A sentence without its full stop; None where the records are the same: all of them with ORDER, those
        of all parts together with PART, but those of the last element with SHORTER.
    """
    makers = record_path(last, functions).makers
    grouped = place.type.startswith(BATCHING) and place.name not in makers
    states = {place.name: _State(effect, effect is not Effect.ORDER, grouped)}
    for node in in_order(last):
        if node.name == shared and node.name in _reached(states, node):
            return f"behind {called(node)} every worker gets its part by the order of the elements"
        if node.name == place.name:
            continue
        read = [states[other.name] for other in dataset_inputs(node) if other.name in states]
        if read and node in joins:
            states[node.name] = _joined(read)
        elif read:
            state = _joined(read)
            if node.name in makers and state.effect is not Effect.SHORTER:
                return f"{called(node)} makes each record of several elements, which would be others"
            found = _behind(node, state, functions)
            if isinstance(found, str):
                return f"{called(node)} {found}"
            states[node.name] = found
    return None


def _reached(states: Mapping[str, _State], node: Any) -> set[str]:
    """The operation's name, if what it delivers is changed."""
    changed = node.name in states or any(other.name in states for other in dataset_inputs(node))
    return {node.name} if changed else set()


def _joined(states: Sequence[_State]) -> _State:
    effects = {state.effect for state in states}
    return _State(
        effects.pop() if len(effects) == 1 else Effect.ORDER,
        any(state.fewer for state in states),
        any(state.mixed for state in states),
    )


def _behind(node: Any, state: _State, functions: Mapping[str, Any]) -> _State | str:
    """What becomes of the elements behind an operation, or why nobody knows."""
    kind = kind_of(node.type)
    if state.effect is Effect.SHORTER:
        if kind in _FORWARD or kind.startswith(BATCHING):
            return state
        state = _State(Effect.ORDER, fewer=True, mixed=True)
    if kind in _HANDING_ON or (kind in _NO_LIMITS and constant(node, "count") == _NO_LIMITS[kind]):
        return state
    if kind == "CacheDataset":
        return "keeps elements in a file" if state.fewer and _has_file(node) else state
    if kind == "AssertCardinalityDataset" and not state.fewer:
        return state
    if kind == "ConcatenateDataset" and state.effect is Effect.ORDER:
        return state
    if kind == "DirectedInterleaveDataset" and state.effect is Effect.ORDER and reads_all(node):
        return state
    if kind.startswith(BATCHING):
        return _behind_batch(node, state, functions)
    if kind in _MAPS:
        does = trouble(node, functions)
        return replace(state, mixed=True) if does == _RANDOM else does or state
    if kind in FILTERS | NESTING:
        if state.mixed:
            return "chooses by the contents of batches, or by random numbers"
        return trouble(node, functions) or state
    return "may depend on the order or the number of what it reads"


def reads_all(node: Any) -> bool:
    """Whether `sample_from_datasets` goes on until all its datasets have ended: what it draws never ends."""
    drawn = dataset_inputs(node)[0]
    while inputs := dataset_inputs(drawn):
        drawn = inputs[0]
    return drawn.type.startswith("RandomDataset") and not node.get_attr("stop_on_empty_dataset")


_NO_LIMITS = {"TakeDataset": -1, "SkipDataset": 0}


def _behind_batch(node: Any, state: _State, functions: Mapping[str, Any]) -> _State | str:
    if "Padded" in node.type and not all(shape[1:].is_fully_defined() for shape in shapes_of(node)):
        return "pads records to the longest of their batch"
    does = trouble(node, functions)
    return does if does and does != _RANDOM else replace(state, mixed=True)


_RANDOM = "draws random numbers out of a state"
_PYTHON = "calls Python, which may do something else in another order of calls"


def trouble(node: Any, functions: Mapping[str, Any]) -> str | None:
    """Why what the functions of an operation return may depend on their other calls, or never end.

    Returns:
        A sentence without its subject; None where neither is so.
    """
    operations: set[str] = set()
    for function in functions_of(node, functions):
        operations |= {inner.op for inner in function.node_def if inner.op not in functions}
        if any(map(_is_huge, function.node_def)):
            return "may deliver without end"
    return _trouble_of(operations, functions)


def _trouble_of(operations: set[str], functions: Mapping[str, Any]) -> str | None:
    if operations & PYTHON:
        return _PYTHON
    unknown = {kind_of(name) for name in operations if kind_of(name).endswith("Dataset")} - _WITHIN
    if unknown:
        return f"has {' and '.join(sorted(unknown))} in its function"
    stateful = {name for name in operations if "PartitionedCall" not in name and is_stateful(name)}
    harmless = _HARMLESS if _writes(functions) else _HARMLESS | _READING
    left = {name for name in stateful if kind_of(name) not in harmless | _WITHIN}
    if not left:
        return None
    return _RANDOM if all(map(is_random, left)) else f"keeps a state ({', '.join(sorted(left))})"


def _writes(functions: Mapping[str, Any]) -> bool:
    return any(node.op.startswith(_WRITING) for function in functions.values() for node in function.node_def)


def _is_huge(node: Any) -> bool:
    """Whether a constant in a function is a number of elements that never end."""
    if node.op != "Const" or node.attr["dtype"].type != tf.int64.as_datatype_enum:
        return False
    tensor = node.attr["value"].tensor
    if tensor.tensor_shape.dim:
        return False
    return int(tf.make_ndarray(tensor)) >= ENDLESS


def in_any_order(node: Any, *, by_options: bool = False) -> bool:
    """Whether an operation delivers results as they happen to be ready.

    Args:
        node: The operation.
        by_options: Whether the options of the whole dataset allow it.
    """
    known = {attribute.name for attribute in node.op_def.attr}
    if "sloppy" in known and node.get_attr("sloppy"):
        return True
    told = node.get_attr("deterministic") if "deterministic" in known else None
    return told == b"false" or (by_options and told == b"default")


def options_allow_any_order(last: Any) -> bool:
    """Whether options say that the order of elements does not matter."""
    return any(node.type == "OptionsDataset" and allow_any_order(node) for node in in_order(last))


def allow_any_order(node: Any) -> bool:
    """The same of the options of one operation."""
    options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
    return bool(options.WhichOneof("optional_deterministic")) and not options.deterministic


def unsteady(
    node: Any, functions: Mapping[str, Any], elements_read: int | None, *, any_order: bool
) -> str | None:
    """Why workers that run the same program may find different elements at one position of a dataset.

    Args:
        node: Its operation; what that reads is judged by itself.
        functions: The graph's library: FunctionDef by name.
        elements_read: How many elements there are of what it reads; None where that is not known.
        any_order: Whether the options of the whole dataset allow any order.

    Returns:
        A sentence without its full stop; None where they find the same.
    """
    kind = kind_of(node.type)
    found: str | None = None
    if in_any_order(node, by_options=any_order):
        found = "delivers results as they happen to be ready"
    elif kind in _CALLING_IN_ORDER | _INTERLEAVES or kind.startswith(BATCHING):
        found = trouble(node, functions)
        if kind in _INTERLEAVES and elements_read != 1 and (constant(node, "cycle_length") or 0) < 1:
            found = found or "reads as many at once as a worker has CPUs for"
    elif kind.startswith("Shuffle"):
        found = "mixes the elements"
    elif numbers(node):
        found = None
    elif kind not in _STEADY and (kind != "CacheDataset" or _has_file(node)):
        found = "is not known to deliver the same to every worker"
    found = found or _trouble_of(_computing(node), functions)
    return None if found is None else f"{called(node)} {found}"


def _computing(node: Any) -> set[str]:
    """Kinds of the operations that compute the arguments of a dataset."""
    kinds: set[str] = set()
    waiting = [tensor.op for tensor in node.inputs if not is_dataset(tensor)]
    seen: set[str] = set()
    while waiting:
        found = waiting.pop()
        if found.name not in seen:
            seen.add(found.name)
            kinds.add(found.type)
            waiting += [tensor.op for tensor in found.inputs]
    return kinds


def numbers(node: Any) -> bool:
    """Whether an operation pairs the elements of at most one dataset with numbers, as `enumerate` does."""
    paired = dataset_inputs(node)
    return node.type == "ZipDataset" and sum(map(is_range, paired)) >= len(paired) - 1


def is_range(node: Any) -> bool:
    """Whether an operation delivers a range of numbers, be it one that is spread over machines."""
    while node.type == "RewriteDataset":
        node = dataset_inputs(node)[0]
    return bool(node.type == "RangeDataset")


def _has_file(node: Any) -> bool:
    name = tf.get_static_value(input_lists(node)["filename"][0])
    return name is None or bool(name.item() if hasattr(name, "item") else name)


def called(node: Any) -> str:
    """How a user knows an operation: `take() in data.py:12`."""
    made_by = origin(node)
    name = called_function(node) or kind_of(node.type)
    return f"{name}() in {made_by.source}" if made_by.source else f"{name}()"


def called_function(node: Any) -> str | None:
    """The name of the call that made an operation; None where it has none that a user knows."""
    name = origin(node).function
    return None if name is None or name.startswith("_") else re.sub(r"_v\d+$", "", name)


def call(node: Any, arguments: Mapping[str, Any] | None = None) -> str:
    """The call that made an operation, with what it is given instead: `interleave(cycle_length=4)`."""
    name = called_function(node) or kind_of(node.type)
    given = ((key, "AUTOTUNE" if value == AUTOTUNE else value) for key, value in (arguments or {}).items())
    return f"{name}({', '.join(f'{key}={value}' for key, value in given)})"
