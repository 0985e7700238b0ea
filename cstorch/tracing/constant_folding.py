"""Constant folding: values that depend on no batch, state or random number can be read during recording.

A mask that is made of ranges is one. PyTorch's layers look at their masks, and so do programs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from cgc.importers.aten import Graph, Node, Tensor

_PLACES = frozenset({"device", "layout", "pin_memory", "memory_format"})

_IF_LARGER = {
    "aten.lt.Scalar": False,
    "aten.le.Scalar": False,
    "aten.ge.Scalar": True,
    "aten.gt.Scalar": True,
}
"""Comparisons, with their result for numbers above the bound."""
_OF_EQUAL = frozenset({"aten.lt.Scalar", "aten.ge.Scalar"})
"""Comparisons with the same result for the bound itself."""


def static_value(graph: Graph, value: Tensor, constants: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Return a value that is the same in every step; None if steps differ.

    Args:
        graph: the step, as far as it is recorded.
        value: a value of the graph.
        constants: elements of values that are no results of operations and that no step changes, by number.
    """
    wanted, nodes = _dependencies(graph, value)
    drawn = {result.id: node for node in nodes if _is_drawn(node) for result in node.results if result}
    certain = {
        result.id: torch.full(result.shape, truth)
        for node in nodes
        if (result := node.results[0]) is not None and (truth := _certain_truth(node, drawn)) is not None
    }
    if certain:
        wanted, nodes = _dependencies(graph, value, certain.keys())
        constants = {**constants, **certain}
    if not wanted <= constants.keys() or any(map(_is_drawn, nodes)):
        return None
    values = {number: constants[number] for number in wanted}
    for node in reversed(nodes):
        positional, named = _arguments(node, values)
        found = operator(node)(*positional, **named)
        results = found if isinstance(found, tuple | list) else (found,)
        values.update((r.id, t) for r, t in zip(node.results, results, strict=True) if r is not None)
    return values[value.id]


def fold_float64(graph: Graph, constants: Mapping[int, torch.Tensor]) -> list[tuple[Tensor, torch.Tensor]]:
    """Compute float64 values that depend only on constants on this CPU, and remove their operations.

    The CS system lacks float64. Libraries make tables of positions and the like in float64, and round them to
    the type of the model.

    Args:
        graph: a step that is recorded.
        constants: as for `static_value`.

    Returns:
        The values of those operations that others read, with their elements.
    """
    wide = {
        result.id for node in graph.nodes for result in node.results if result and result.dtype == "float64"
    }
    if not wide:
        return []
    found: list[tuple[Tensor, torch.Tensor]] = []
    kept: list[Node] = []
    for node in graph.nodes:
        results = [result for result in node.results if result is not None]
        reads = any(tensor.id in wide for tensor in node.tensors())
        if reads and wide.isdisjoint(result.id for result in results):
            values = [(result, static_value(graph, result, constants)) for result in results]
            known = [(result, elements) for result, elements in values if elements is not None]
            if len(known) == len(results):
                found += known
                continue
        kept.append(node)
    graph.nodes[:] = _remove_unused(graph, kept, wide)
    return found


def _remove_unused(graph: Graph, nodes: list[Node], numbers: Collection[int]) -> list[Node]:
    """Return the operations without those whose results, all among `numbers`, nothing reads."""
    checked = (check.tensor for check in graph.checks)
    read = {tensor.id for tensor in (*graph.outputs.values(), *graph.updates.values(), *checked)}
    kept: list[Node] = []
    for node in reversed(nodes):
        made = {result.id for result in node.results if result is not None}
        if made.issubset(numbers) and read.isdisjoint(made):
            continue
        read |= {tensor.id for tensor in node.tensors()}
        kept.append(node)
    return kept[::-1]


def sources(graph: Graph, value: Tensor) -> set[int]:
    """Return the numbers of the values, results of no operation, that a value of the graph depends on."""
    return _dependencies(graph, value)[0]


def _dependencies(graph: Graph, value: Tensor, ends: Collection[int] = ()) -> tuple[set[int], list[Node]]:
    """Return the inputs that a value depends on, `ends` among them, and the operations, the last first."""
    wanted, nodes = {value.id}, list[Node]()
    for node in reversed(graph.nodes):
        made = {result.id for result in node.results if result is not None} - set(ends)
        if wanted & made:
            nodes.append(node)
            wanted = (wanted - made) | {tensor.id for tensor in node.tensors()}
    return wanted, nodes


def _is_drawn(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in operator(node).tags


def _certain_truth(node: Node, drawn: Mapping[int, Node]) -> bool | None:
    """Return the result of comparing uniform numbers in [0, 1) with a bound outside of that range."""
    # Libraries drop a layer if `torch.rand([]) < self.layerdrop`, and users set 0 to switch that off.
    larger = _IF_LARGER.get(node.op)
    number, bound = node.arguments.get("self"), node.arguments.get("other")
    if larger is None or not isinstance(number, Tensor) or not isinstance(bound, int | float):
        return None
    if number.id not in drawn or drawn[number.id].op != "aten.rand.default":
        return None
    if bound >= 1:
        return not larger
    return larger if bound < 0 or (bound == 0 and node.op in _OF_EQUAL) else None


def operator(node: Node) -> Any:
    """Return PyTorch's operator of a node."""
    namespace, name, overload = node.op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _arguments(node: Node, values: Mapping[int, torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and named arguments of a node for PyTorch on this CPU."""
    specs = [spec for spec in operator(node)._schema.arguments if spec.name in node.arguments]
    taken = {spec.name: _to_argument(spec.name, node.arguments[spec.name], values) for spec in specs}
    named = {spec.name for spec in specs if spec.kwarg_only}
    return (
        [taken[spec.name] for spec in specs if spec.name not in named],
        {name: taken[name] for name in named - _PLACES},
    )


def _to_argument(name: str, given: Any, values: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(given, Tensor):
        return values[given.id]
    if isinstance(given, list | tuple):
        return [_to_argument(name, item, values) for item in given]
    return getattr(torch, given) if name == "dtype" and isinstance(given, str) else given
