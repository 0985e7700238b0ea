"""Tensors of the device in nests of lists, tuples and dicts, with their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import _pytree as pytree

from cstorch.tracing.device import DeviceTensor
from cstorch.utils.helpers import recurse_spec, visit_torch_tensors


def map_xla_tensors(function: Callable[[list[str], Any], Any], *structures: Any) -> Any:
    """Return a nest with the function's results instead of the tensors of the device; the others stay.

    Args:
        function: Of the path of a tensor, a list of keys and indices, and the tensor.
        structures: One nest; of several a tuple is returned.
    """
    mapped = tuple(_map(function, structure) for structure in structures)
    return mapped[0] if len(mapped) == 1 else mapped


def _map(function: Callable[[list[str], Any], Any], structure: Any) -> Any:
    leaves, spec = pytree.tree_flatten(structure)
    found = [
        function(path, x) if isinstance(x, DeviceTensor) else x
        for path, x in zip(recurse_spec(spec), leaves, strict=True)
    ]
    return pytree.tree_unflatten(found, spec)


def visit_xla_tensors(*structures: Any) -> Iterator[tuple[list[str], Any]]:
    """Yield the tensors of the device in nests with their paths, in their order."""
    for structure in structures:
        yield from ((path, x) for path, x in visit_torch_tensors(structure) if isinstance(x, DeviceTensor))
