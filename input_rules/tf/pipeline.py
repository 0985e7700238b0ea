"""The Pipeline of a tf.data Dataset, read from the graph that its input function builds.

In a graph every dataset is an operation: its inputs are the datasets that it reads, its constants the
arguments of the call, its traceback says who made it. One call may make several operations (`enumerate` makes
three); they are one stage, named after the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2
from tensorflow.python.data.util.structure import NoneTensorSpec

from input_rules.errors import WrongTypeError
from input_rules.pipeline import Pipeline, Stage, Tensor, Value
from input_rules.rules.base import READERS, is_batched
from input_rules.tf.elements import (
    UnknownSizes,
    batch_facts,
    length,
    random_numbers,
    record_path,
    source_size,
    unknown_sizes,
)
from input_rules.tf.operations import (
    Origin,
    allow_any_order,
    dataset_inputs,
    in_order,
    input_lists,
    kind_of,
    origin,
    traits,
)

_READERS = tuple(READERS)
_MAKE_ONE = frozenset(
    {
        *("map", "filter", "batch", "padded_batch", "shuffle", "repeat", "take", "skip", "cache", "prefetch"),
        *("shard", "interleave", "flat_map", "zip", "concatenate", "scan", "window", "take_while"),
    }
)
"""Calls that make one operation each: several of them on one line are several stages."""
_DATA = frozenset({"components", "other_arguments", "input_dataset", "filenames"})
_SMALL = 16
"""Constants of more elements are data, not settings."""


@dataclass(frozen=True)
class Traced:
    """A dataset in the graph that it was built in.

    Attributes:
        graph: Holds the dataset and what it captured.
        dataset: What the input function returned.
        pipeline: Its stages.
        nodes: The operations of each stage by its name, in pipeline order; the last one is what later
            stages read.
    """

    graph: Any
    dataset: Any
    pipeline: Pipeline
    nodes: Mapping[str, tuple[Any, ...]]


InGraph = Callable[[Callable[[], Any], int | None], tuple[Any, Any]]
"""Calls an input function with the seed of a graph; the graph, and the dataset in it."""


def called(make: Callable[[], Any], seed: int | None) -> tuple[Any, Any]:
    """Calls an input function in a graph of its own.

    Raises:
        WrongTypeError: the result is no Dataset.
        Exception: whatever the function raises, unchanged.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.set_random_seed(seed)
        dataset = make()
    if not isinstance(dataset, tf.data.Dataset):
        raise WrongTypeError(dataset)
    return graph, dataset


def trace(
    make: Callable[[], Any],
    seed: int | None = None,
    samples_per_element: int | None = None,
    *,
    in_graph: InGraph = called,
) -> Traced:
    """Calls an input function and reads what it built, in a graph of its own.

    Args:
        make: Returns a Dataset.
        seed: Of the graph; operations without a seed of their own get one from it.
        samples_per_element: Records of an element; by default the first size of its first tensor where some
            stage makes batches, else 1.
        in_graph: Makes the dataset in a graph.

    Raises:
        WrongTypeError: the result is no Dataset.
        Exception: whatever the function raises, unchanged.
    """
    graph, dataset = in_graph(make, seed)
    return read(graph, dataset, samples_per_element)


def read(graph: Any, dataset: Any, samples_per_element: int | None = None) -> Traced:
    """Reads what makes a dataset of a graph; for the arguments see `trace`."""
    with graph.as_default():
        last = tf.data.experimental.to_variant(dataset).op
    groups = _groups(last)
    functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
    stages = _stages(groups, functions, unknown_sizes(last, functions))
    element = _tensors(dataset.element_spec)
    if samples_per_element is None:
        samples_per_element = _batch_size(stages, element)
    pipeline = Pipeline("tensorflow", stages, element, samples_per_element)
    nodes = {stage.name: tuple(group.nodes) for stage, group in zip(stages, groups, strict=True)}
    return Traced(graph, dataset, pipeline, nodes)


@dataclass(eq=False)
class _Group:
    """The operations that one call made."""

    origin: Origin
    nodes: list[Any] = field(default_factory=list)

    def takes(self, node: Any, made_by: Origin) -> bool:
        """Whether the call that made this group made the node too.

        A call in a loop makes the same operations again, with the same traceback: another stage.
        """
        if made_by.function in _MAKE_ONE:
            return False
        return self.origin.call == made_by.call and all(
            origin(other).frames != made_by.frames for other in self.nodes
        )


def _groups(last: Any) -> list[_Group]:
    """Groups in pipeline order."""
    of_node: dict[str, _Group] = {}
    groups: list[_Group] = []
    for node in in_order(last):
        made_by = origin(node)
        group = _Group(made_by)
        for part in dict.fromkeys(of_node[other.name] for other in dataset_inputs(node)):
            if part.takes(node, made_by):
                group.nodes += part.nodes
                groups.remove(part)
        group.nodes.append(node)
        groups.append(group)
        of_node.update((member.name, group) for member in group.nodes)
    return groups


def _stages(groups: list[_Group], functions: Mapping[str, Any], unknown: UnknownSizes) -> tuple[Stage, ...]:
    name_of_node: dict[str, str] = {}
    counts: dict[str, int] = {}
    stages = []
    last = groups[-1].nodes[-1]
    path, aside = record_path(last, functions), random_numbers(last)
    for position, group in enumerate(groups):
        attributes = _merged(group.nodes, functions, unknown, aside)
        attributes |= {"batched": True} if group.nodes[-1].name in path.batched else {}
        attributes |= {"part": True} if group.nodes[-1].name in path.parts else {}
        attributes |= {"makes_record": True} if path.makers & {node.name for node in group.nodes} else {}
        op = _op_name(group, attributes)
        counts[op] = counts.get(op, 0) + 1
        name = op if counts[op] == 1 else f"{op}_{counts[op]}"
        inside = {node.name for node in group.nodes}
        read = [other.name for node in group.nodes for other in dataset_inputs(node)]
        inputs = tuple(name_of_node[other] for other in read if other not in inside)
        name_of_node.update(dict.fromkeys(inside, name))
        stages.append(Stage(name, op, position, inputs, group.origin.source, attributes))
    return tuple(stages)


def _op_name(group: _Group, attributes: Mapping[str, Value]) -> str:
    """Name of the call; that of the class where a class was called."""
    called = group.origin.function
    if called and called != "apply" and not called.startswith("_"):
        return re.sub(r"_v\d+$", "", called)
    reads = str(attributes.get("reads") or "")
    if called == "__init__" and reads:
        return reads
    kind = group.nodes[-1].type
    stem = re.sub(r"(Dataset)?(V\d+)?$", "", kind)
    return kind if not stem else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def _merged(
    nodes: Sequence[Any], functions: Mapping[str, Any], unknown: UnknownSizes, aside: Collection[str]
) -> dict[str, Value]:
    """Arguments of the operation that delivers, and what the others read and do."""
    merged: dict[str, Value] = {}
    for node in nodes:
        merged.update(_merged_traits(merged, traits(node, functions)))
        if node.name not in aside or nodes[-1].name in aside:
            merged.update(batch_facts(node))
        if node.type == "OptionsDataset":
            merged["optimized"] = _optimized(node)
            merged["any_order"] = allow_any_order(node) or None
        if node.type.startswith(_READERS):
            merged["reads"] = kind_of(node.type)
    merged.update(_sizes(nodes, reads="reads" in merged))
    merged.update(arguments(nodes[-1]))
    merged["kinds"] = tuple(node.type for node in nodes)
    merged.update(_shape(nodes[-1]))
    names = {node.name for node in nodes}
    merged["smaller_batch"] = bool(names & unknown.smaller) or None
    merged["unknown_size"] = bool(names & unknown.others) or None
    return {name: value for name, value in merged.items() if value is not None}


def _merged_traits(before: Mapping[str, Value], more: Mapping[str, Value]) -> dict[str, Value]:
    """What several operations of a call do: nothing (`free`) if none does, else what one of them does."""
    merged = dict(more)
    for name, value in more.items():
        if isinstance(value, bool) and isinstance(before.get(name), bool):
            merged[name] = (before[name] and value) if name == "free" else (before[name] or value)
    return merged


def _sizes(nodes: Sequence[Any], *, reads: bool) -> dict[str, Value]:
    """`records`: how many elements an epoch has; `files` that are read; `endless`."""
    first = next((node for node in nodes if not dataset_inputs(node)), None)
    count = None if first is None else source_size(first)
    whole = length(nodes)
    has_names = first is not None and first.type.startswith("TensorSlice") and _is_paths(first)
    return {
        "records": None if reads else whole.epoch,
        "files": count if reads or has_names else None,
        "endless": whole.endless or None,
    }


def _optimized(node: Any) -> bool:
    """Whether options let TensorFlow make calls parallel that were not written so."""
    options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
    tuned, changed = options.autotune_options, options.optimization_options
    rewriting = (changed, "apply_default_optimizations"), (changed, "map_parallelization")
    switches = ((tuned, "enabled"), *rewriting)
    return all(getattr(message, name) for message, name in switches if message.HasField(name))


def arguments(node: Any) -> dict[str, Value]:
    """The constant arguments of a dataset operation by their names in its definition; no data."""
    found: dict[str, Value] = {}
    for name, tensors in input_lists(node).items():
        if name in _DATA or len(tensors) != 1 or tensors[0].dtype == tf.variant:
            continue
        value = tf.get_static_value(tensors[0])
        if value is not None and value.size <= _SMALL:
            found[name] = _plain(value.tolist())
    for attribute in node.op_def.attr:
        if attribute.name in (
            *("deterministic", "sloppy", "reshuffle_each_iteration", "stop_on_empty_dataset"),
        ):
            found[attribute.name] = _plain(node.get_attr(attribute.name))
    return found


def _is_paths(source: Any) -> bool:
    """Whether the slices of tensors are names of files, in folders."""
    tensor = input_lists(source)["components"][0]
    value = tf.get_static_value(tensor) if tensor.dtype == tf.string else None
    return value is not None and value.size > 0 and b"/" in bytes(value.reshape(-1)[0])


def _plain(value: Any) -> Value:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return tuple(v.decode(errors="replace") if isinstance(v, bytes) else v for v in value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def _shape(node: Any) -> dict[str, Value]:
    """`element_bytes`: size of one element; `fixed_shape`: whether it is known; `types` of its components."""
    known = {attribute.name for attribute in node.op_def.attr}
    kinds = next((name for name in ("output_types", "Toutput_types") if name in known), None)
    if kinds is None:
        return {}
    shapes, types = node.get_attr("output_shapes"), node.get_attr(kinds)
    named: dict[str, Value] = {"types": tuple(tf.as_dtype(dtype).name for dtype in types)}
    total = 0
    for shape, dtype in zip(shapes, types, strict=True):
        sizes = [] if shape.unknown_rank else [dim.size for dim in shape.dim]
        if shape.unknown_rank or -1 in sizes or dtype in (tf.string, tf.variant, tf.resource):
            return named | {"fixed_shape": False}
        count = 1
        for size in sizes:
            count *= size
        total += count * tf.as_dtype(dtype).size
    return named | {"fixed_shape": True, "element_bytes": total}


def _tensors(spec: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor(name, leaf) for name, leaf in named_specs(spec))


def named_specs(spec: Any, name: str = "element") -> Iterator[tuple[str, Any]]:
    """The specs of the tensors of an element by what a Python expression calls them, `element['x'][0]`."""
    if isinstance(spec, Mapping):
        for key in sorted(spec):
            yield from named_specs(spec[key], f"{name}[{key!r}]")
    elif isinstance(spec, tuple) and hasattr(spec, "_fields"):
        for field in spec._fields:
            yield from named_specs(getattr(spec, field), f"{name}.{field}")
    elif isinstance(spec, tuple | list):
        for index, item in enumerate(spec):
            yield from named_specs(item, f"{name}[{index}]")
    elif not isinstance(spec, NoneTensorSpec):
        yield name, spec


def _tensor(name: str, spec: Any) -> Tensor:
    dtype = getattr(spec, "dtype", None)
    shape = getattr(spec, "shape", None)
    rank = getattr(shape, "rank", None)
    sizes = None if shape is None or rank is None else tuple(shape.as_list())
    return Tensor(name, dtype.name if dtype is not None else type(spec).__name__, sizes)


def _batch_size(stages: tuple[Stage, ...], element: tuple[Tensor, ...]) -> int:
    if not is_batched(stages[-1]):
        return 1
    for tensor in element:
        if tensor.shape and tensor.shape[0]:
            return tensor.shape[0]
    sizes = [stage.attributes.get("batch_size") for stage in stages if is_batched(stage)]
    size = next((size for size in reversed(sizes) if size is not None), None)
    return size if isinstance(size, int) and size > 0 else 1
