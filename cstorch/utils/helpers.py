"""Small helpers of programs: filters of parameters by name, nests of values, functions that run once."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from cstorch.errors import SessionError

FilterCallable = Callable[[str, nn.Parameter], bool]
"""Chooses parameters by name and value."""


def is_ltc_mlir_mode_enabled() -> bool:
    """Return False: programs of release 1.9 then record one step and drive the appliance.

    They use the loop of `cerebras_pytorch` only if they ask for it with `experimental_api`.
    """
    return False


def convert_glob_to_regex(f: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return the regular expression for a name with wildcards; a regular expression is returned unchanged.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(f, re.Pattern):
        return f
    if not isinstance(f, str):
        raise TypeError(f"filter is a {type(f).__name__}, expected a string")
    return re.compile(fnmatch.translate(f))


def make_param_filter(param_filter: Any) -> FilterCallable:
    """Return a filter from a function, or from names with wildcards of which one has to match.

    Raises:
        TypeError: It is something else.
    """
    if callable(param_filter):
        return param_filter
    names = [param_filter] if isinstance(param_filter, str | re.Pattern) else param_filter
    if not isinstance(names, list | tuple | set):
        raise TypeError(
            f"param_filter is a {type(param_filter).__name__}, expected a string, a list of strings, or a "
            "function of the name and the parameter"
        )
    patterns = [convert_glob_to_regex(name) for name in names]
    return lambda name, param: any(pattern.search(name) for pattern in patterns)


def extract_loss(outputs: Any) -> torch.Tensor:
    """Return the loss of a model: its tensor, the first of a sequence, or `loss` of a mapping or object.

    Raises:
        SessionError: There is no loss.
    """
    found = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
    elif not isinstance(outputs, torch.Tensor) and getattr(outputs, "loss", None) is not None:
        found = outputs.loss
    elif isinstance(outputs, list | tuple) and outputs:
        found = outputs[0]
    if not isinstance(found, torch.Tensor):
        raise SessionError(
            f"a model returned a {type(outputs).__name__} without a loss, expected a tensor, a sequence that "
            "begins with one, or a mapping or object with `loss`"
        )
    return found


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


P = ParamSpec("P")
T = TypeVar("T")


def call_once(error_callable: Callable[..., Any] | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of a function that runs at its first call; later ones return the first result.

    Args:
        error_callable: Called at every later call.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        results: list[T] = []

        @wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> T:
            if not results:
                results.append(function(*args, **kwargs))
            elif error_callable is not None:
                error_callable()
            return results[0]

        return once

    return decorate
