"""Nests of dicts, lists and tuples with the paths of their leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


def recurse_spec(spec: pytree.TreeSpec, scope: list[str] | None = None) -> Iterator[list[str]]:
    """Yield the path of each leaf of a nest, as lists of keys and indices.

    Args:
        spec: What `torch.utils._pytree.tree_flatten` returned.
        scope: Start of all paths.
    """
    scope = scope or []
    if spec.is_leaf():
        yield scope
        return
    keys = spec.context if spec.type in pytree.BUILTIN_TYPES and _is_mapping(spec.type) else None
    for index, child in enumerate(spec.children()):
        yield from recurse_spec(child, [*scope, str(index if keys is None else keys[index])])


def named_leaves(data_structure: Any) -> dict[str, Any]:
    """Return the leaves of a nest by their keys and indices, joined by dots."""
    leaves, spec = pytree.tree_flatten(data_structure)
    return dict(zip((".".join(path) for path in recurse_spec(spec)), leaves, strict=True))


def visit_torch_tensors(
    data_structure: Any, strict: bool = False, scope: list[str] | None = None
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Yield the tensors of a nest with their paths.

    Args:
        data_structure: The nest.
        strict: Refuse other leaves.
        scope: Start of all paths.

    Raises:
        ValueError: `strict`, and a leaf is no tensor.
    """
    leaves, spec = pytree.tree_flatten(data_structure)
    for path, leaf in zip(recurse_spec(spec, scope), leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            yield path, leaf
        elif strict:
            raise ValueError(f"the leaf at {'.'.join(path) or 'the top'} is {leaf!r}, expected a tensor")


def _is_mapping(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, dict)
