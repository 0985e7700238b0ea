"""Values of a step that no batch, state or random number decides: they can be read while it is recorded.

A mask that is made of ranges is one. PyTorch's layers look at their masks, and so do programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cgc.importers.aten import Graph, Node, Tensor

_PLACES = frozenset({"device", "layout", "pin_memory", "memory_format"})


def known_value(graph: Graph, value: Tensor, constants: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """What a value is in every step; None where steps differ.

    Args:
        graph: the step, as far as it is recorded.
        value: of the graph.
        constants: elements of values that no operation makes and no step changes, by number.
    """
    wanted, nodes = {value.id}, list[Node]()
    for node in reversed(graph.nodes):
        made = {result.id for result in node.results if result is not None}
        if wanted & made:
            nodes.append(node)
            wanted = (wanted - made) | {tensor.id for tensor in node.tensors()}
    if not wanted <= constants.keys() or any(
        torch.Tag.nondeterministic_seeded in operator(n).tags for n in nodes
    ):
        return None
    values = {number: constants[number] for number in wanted}
    for node in reversed(nodes):
        positional, named = _arguments(node, values)
        found = operator(node)(*positional, **named)
        results = found if isinstance(found, tuple | list) else (found,)
        values.update((r.id, t) for r, t in zip(node.results, results, strict=True) if r is not None)
    return values[value.id]


def operator(node: Node) -> Any:
    """PyTorch's operator of a node."""
    namespace, name, overload = node.op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _arguments(node: Node, values: Mapping[int, torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """As PyTorch takes them on this CPU."""
    specs = [spec for spec in operator(node)._schema.arguments if spec.name in node.arguments]
    taken = {spec.name: _taken(spec.name, node.arguments[spec.name], values) for spec in specs}
    named = {spec.name for spec in specs if spec.kwarg_only}
    return (
        [taken[spec.name] for spec in specs if spec.name not in named],
        {name: taken[name] for name in named - _PLACES},
    )


def _taken(name: str, given: Any, values: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(given, Tensor):
        return values[given.id]
    if isinstance(given, list | tuple):
        return [_taken(name, item, values) for item in given]
    return getattr(torch, given) if name == "dtype" and isinstance(given, str) else given
