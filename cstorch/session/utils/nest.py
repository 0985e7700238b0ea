"""Tensors of the device in nests of lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import _pytree as pytree

from cstorch.tracing.device import DeviceTensor


def map_xla_tensors(function: Callable[[Any], Any], *structures: Any) -> Any:
    """A nest with the function's results in place of the tensors of the device; the others stay.

    Args:
        function: of a tensor.
        structures: one nest; of several a tuple is returned.
    """
    mapped = tuple(pytree.tree_map_only(DeviceTensor, function, structure) for structure in structures)
    return mapped[0] if len(mapped) == 1 else mapped


def visit_xla_tensors(*structures: Any) -> Iterator[Any]:
    """The tensors of the device in nests, in their order."""
    for structure in structures:
        yield from (x for x in pytree.tree_leaves(structure) if isinstance(x, DeviceTensor))
