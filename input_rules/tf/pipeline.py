"""Read the Pipeline of a tf.data Dataset from the graph that its input function builds.

In a graph every dataset is an operation: its inputs are the datasets that it reads, its constants are the
arguments of the call, and its traceback shows who made it. A call may make several operations (`enumerate`
makes three); they form one stage, which is named after the call.
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
    count_elements,
    count_source,
    find_random_sources,
    find_record_path,
    find_unknown_sizes,
    read_batch_arguments,
)
from input_rules.tf.operations import (
    Origin,
    allows_any_order,
    dataset_inputs,
    find_inputs,
    find_origin,
    function_traits,
    kind_of,
    topological_order,
)

_READERS = tuple(READERS)
# Calls that make a single operation: several of them on one line are several stages.
_MAKE_ONE = frozenset(
    {
        *("map", "filter", "batch", "padded_batch", "shuffle", "repeat", "take", "skip", "cache", "prefetch"),
        *("shard", "interleave", "flat_map", "zip", "concatenate", "scan", "window", "take_while"),
    }
)
_DATA = frozenset({"components", "other_arguments", "input_dataset", "filenames"})
# Constants with more elements are data and not settings.
_SMALL = 16


@dataclass(frozen=True)
class TracedDataset:
    """A dataset in the graph that it was built in.

    Attributes:
        graph: The graph with the dataset and its captured values.
        dataset: The result of the input function.
        pipeline: Its stages.
        nodes: The operations of each stage by its name, in pipeline order; later stages read the last one.
    """

    graph: Any
    dataset: Any
    pipeline: Pipeline
    nodes: Mapping[str, tuple[Any, ...]]


# Calls an input function with the seed of a graph; returns the graph and the dataset in it.
GraphBuilder = Callable[[Callable[[], Any], int | None], tuple[Any, Any]]


def call_in_graph(make: Callable[[], Any], seed: int | None) -> tuple[Any, Any]:
    """Call an input function in a new graph.

    Raises:
        WrongTypeError: the result is no Dataset.
        Exception: anything that the function raises, unchanged.
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
    in_graph: GraphBuilder = call_in_graph,
) -> TracedDataset:
    """Call an input function in a new graph and read the dataset that it builds.

    Args:
        make: Returns a Dataset.
        seed: Graph seed, for operations without their own seed.
        samples_per_element: Records of an element; by default the first size of its first tensor if a stage
            makes batches, else 1.
        in_graph: Makes the dataset in a graph.

    Raises:
        WrongTypeError: the result is no Dataset.
        Exception: anything that the function raises, unchanged.
    """
    graph, dataset = in_graph(make, seed)
    return read_dataset(graph, dataset, samples_per_element)


def read_dataset(graph: Any, dataset: Any, samples_per_element: int | None = None) -> TracedDataset:
    """Read the pipeline of a dataset in a graph; for the arguments see `trace`."""
    with graph.as_default():
        last = tf.data.experimental.to_variant(dataset).op
    groups = _group_by_call(last)
    functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
    stages = _make_stages(groups, functions, find_unknown_sizes(last, functions))
    element = []
    for name, spec in name_specs(dataset.element_spec):
        dtype, shape = getattr(spec, "dtype", None), getattr(spec, "shape", None)
        rank = getattr(shape, "rank", None)
        sizes = None if shape is None or rank is None else tuple(shape.as_list())
        element.append(Tensor(name, dtype.name if dtype is not None else type(spec).__name__, sizes))
    if samples_per_element is None:
        samples_per_element = _batch_size(stages, element)
    pipeline = Pipeline("tensorflow", stages, tuple(element), samples_per_element)
    nodes = {stage.name: tuple(group.nodes) for stage, group in zip(stages, groups, strict=True)}
    return TracedDataset(graph, dataset, pipeline, nodes)


@dataclass(eq=False)
class _Group:
    """The operations that one call made."""

    origin: Origin
    nodes: list[Any] = field(default_factory=list)

    def takes(self, node: Any, made_by: Origin) -> bool:
        """Return True if the call that made this group made the node, too."""
        # A call in a loop makes the same operations again, with the same traceback: that is another stage.
        if made_by.function in _MAKE_ONE:
            return False
        return self.origin.call == made_by.call and all(
            find_origin(other).frames != made_by.frames for other in self.nodes
        )


def _group_by_call(last: Any) -> list[_Group]:
    """Group operations by the call that made them, in pipeline order."""
    of_node: dict[str, _Group] = {}
    groups: list[_Group] = []
    for node in topological_order(last):
        made_by = find_origin(node)
        group = _Group(made_by)
        for part in dict.fromkeys(of_node[other.name] for other in dataset_inputs(node)):
            if part.takes(node, made_by):
                group.nodes += part.nodes
                groups.remove(part)
        group.nodes.append(node)
        groups.append(group)
        of_node.update((member.name, group) for member in group.nodes)
    return groups


def _make_stages(
    groups: list[_Group], functions: Mapping[str, Any], unknown: UnknownSizes
) -> tuple[Stage, ...]:
    name_of_node: dict[str, str] = {}
    counts: dict[str, int] = {}
    stages = []
    last = groups[-1].nodes[-1]
    path, random_sources = find_record_path(last, functions), find_random_sources(last)
    for position, group in enumerate(groups):
        attributes = _read_attributes(group.nodes, functions, unknown, random_sources)
        attributes |= {"batched": True} if group.nodes[-1].name in path.batched else {}
        attributes |= {"part": True} if group.nodes[-1].name in path.parts else {}
        attributes |= {"makes_record": True} if path.makers & {node.name for node in group.nodes} else {}
        op = _op_name(group, attributes)
        counts[op] = counts.get(op, 0) + 1
        name = op if counts[op] == 1 else f"{op}_{counts[op]}"
        inside = {node.name for node in group.nodes}
        read_dataset = [other.name for node in group.nodes for other in dataset_inputs(node)]
        inputs = tuple(name_of_node[other] for other in read_dataset if other not in inside)
        name_of_node.update(dict.fromkeys(inside, name))
        stages.append(Stage(name, op, position, inputs, group.origin.source, attributes))
    return tuple(stages)


def _op_name(group: _Group, attributes: Mapping[str, Value]) -> str:
    """Return the name of the call, or of the class that was called."""
    function = group.origin.function
    if function and function != "apply" and not function.startswith("_"):
        return re.sub(r"_v\d+$", "", function)
    reads = str(attributes.get("reads") or "")
    if function == "__init__" and reads:
        return reads
    kind = group.nodes[-1].type
    stem = re.sub(r"(Dataset)?(V\d+)?$", "", kind)
    return kind if not stem else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def _read_attributes(
    nodes: Sequence[Any], functions: Mapping[str, Any], unknown: UnknownSizes, random_sources: Collection[str]
) -> dict[str, Value]:
    """Merge the arguments of the last operation with the properties of the other operations."""
    merged: dict[str, Value] = {}
    for node in nodes:
        for name, value in function_traits(node, functions).items():
            before = merged.get(name)
            merged[name] = value
            if isinstance(value, bool) and isinstance(before, bool):
                # A call is `free` if all operations are free; it has another property if any of them has.
                merged[name] = (before and value) if name == "free" else (before or value)
        if node.name not in random_sources or nodes[-1].name in random_sources:
            merged.update(read_batch_arguments(node))
        if node.type == "OptionsDataset":
            options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
            tuned, changed = options.autotune_options, options.optimization_options
            rewriting = (changed, "apply_default_optimizations"), (changed, "map_parallelization")
            # Whether TensorFlow may make calls parallel that were not written so.
            merged["optimized"] = all(
                getattr(message, name)
                for message, name in ((tuned, "enabled"), *rewriting)
                if message.HasField(name)
            )
            merged["any_order"] = allows_any_order(node) or None
        if node.type.startswith(_READERS):
            merged["reads"] = kind_of(node.type)
    merged.update(_read_counts(nodes, reads="reads" in merged))
    merged.update(read_arguments(nodes[-1]))
    merged["kinds"] = tuple(node.type for node in nodes)
    merged.update(_read_element_type(nodes[-1]))
    names = {node.name for node in nodes}
    merged["smaller_batch"] = bool(names & unknown.smaller) or None
    merged["unknown_size"] = bool(names & unknown.others) or None
    return {name: value for name, value in merged.items() if value is not None}


def _read_counts(nodes: Sequence[Any], *, reads: bool) -> dict[str, Value]:
    """Return `records` of an epoch, the number of `files` that are read, and `endless`."""
    first = next((node for node in nodes if not dataset_inputs(node)), None)
    count = None if first is None else count_source(first)
    whole = count_elements(nodes)
    has_paths = False  # the slices of tensors are paths with folders
    if first is not None and first.type.startswith("TensorSlice"):
        tensor = find_inputs(first)["components"][0]
        value = tf.get_static_value(tensor) if tensor.dtype == tf.string else None
        has_paths = value is not None and value.size > 0 and b"/" in bytes(value.reshape(-1)[0])
    return {
        "records": None if reads else whole.epoch,
        "files": count if reads or has_paths else None,
        "endless": whole.endless or None,
    }


def read_arguments(node: Any) -> dict[str, Value]:
    """Return the constant arguments of a dataset operation by name, without data."""
    found: dict[str, Value] = {}
    for name, tensors in find_inputs(node).items():
        if name in _DATA or len(tensors) != 1 or tensors[0].dtype == tf.variant:
            continue
        value = tf.get_static_value(tensors[0])
        if value is not None and value.size <= _SMALL:
            found[name] = _to_plain_value(value.tolist())
    for attribute in node.op_def.attr:
        if attribute.name in (
            *("deterministic", "sloppy", "reshuffle_each_iteration", "stop_on_empty_dataset"),
        ):
            found[attribute.name] = _to_plain_value(node.get_attr(attribute.name))
    return found


def _to_plain_value(value: Any) -> Value:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return tuple(v.decode(errors="replace") if isinstance(v, bytes) else v for v in value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def _read_element_type(node: Any) -> dict[str, Value]:
    """Return what is known of the elements of an operation.

    Returns:
        `types` of the components, `known_shape` (all sizes are known, but perhaps those of strings),
        `fixed_shape` (all elements have the same number of bytes), and `element_bytes`.
    """
    known = {attribute.name for attribute in node.op_def.attr}
    kinds = next((name for name in ("output_types", "Toutput_types") if name in known), None)
    if kinds is None:
        return {}
    shapes, types = node.get_attr("output_shapes"), node.get_attr(kinds)
    named: dict[str, Value] = {"types": tuple(tf.as_dtype(dtype).name for dtype in types)}
    named["known_shape"] = not any(
        shape.unknown_rank or any(dim.size < 0 for dim in shape.dim) or dtype in (tf.variant, tf.resource)
        for shape, dtype in zip(shapes, types, strict=True)
    )
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


def name_specs(spec: Any, name: str = "element") -> Iterator[tuple[str, Any]]:
    """Yield the specs of the tensors of an element by their Python expressions, `element['x'][0]`."""
    if isinstance(spec, Mapping):
        for key in sorted(spec):
            yield from name_specs(spec[key], f"{name}[{key!r}]")
    elif isinstance(spec, tuple) and hasattr(spec, "_fields"):
        for field in spec._fields:
            yield from name_specs(getattr(spec, field), f"{name}.{field}")
    elif isinstance(spec, tuple | list):
        for index, item in enumerate(spec):
            yield from name_specs(item, f"{name}[{index}]")
    elif not isinstance(spec, NoneTensorSpec):
        yield name, spec


def _batch_size(stages: tuple[Stage, ...], element: Sequence[Tensor]) -> int:
    if not is_batched(stages[-1]):
        return 1
    for tensor in element:
        if tensor.shape and tensor.shape[0]:
            return tensor.shape[0]
    sizes = [stage.attributes.get("batch_size") for stage in stages if is_batched(stage)]
    size = next((size for size in reversed(sizes) if size is not None), None)
    return size if isinstance(size, int) and size > 0 else 1
