"""Sparsity algorithms out of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cs_toolkit.subclasses import find_program_class
from cstorch.sparse.algorithm import SparsityAlgorithm
from cstorch.sparse.dynamic import GMP, SET, RigL
from cstorch.sparse.filters import default_sparse_param_filter
from cstorch.sparse.group import Group
from cstorch.sparse.static import Static

__all__ = ["configure", "default_sparse_param_filter", "map_sparsity_algorithm"]

_ALGORITHMS: dict[str, type[SparsityAlgorithm]] = {
    kind.__name__.lower(): kind for kind in (Static, GMP, SET, RigL)
}


def map_sparsity_algorithm(algorithm: str) -> type[SparsityAlgorithm]:
    """Return the class of an algorithm, one of ours or of the program, by its name in any case.

    Raises:
        ValueError: there is none of that name.
    """
    found = _ALGORITHMS.get(algorithm.lower()) or find_program_class(SparsityAlgorithm, algorithm)
    if found is None:
        raise ValueError(f"got the sparsity algorithm {algorithm!r}, expected {', '.join(_ALGORITHMS)}")
    return found


def configure(config: float | Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> Group:
    """Make the sparsity algorithms that a configuration describes.

    Args:
        config: a sparsity for masks that stay; a dictionary with `algorithm` ("static" by default),
            `param_filter` and arguments of the algorithm; or a list of such dictionaries.

    Raises:
        ValueError: an algorithm or a filter is unknown.
        TypeError: it is none of these, or the algorithm does not take an argument.
    """
    if isinstance(config, int | float):
        return _group([{"sparsity": config}])
    if isinstance(config, Mapping):
        return _group([config])
    if isinstance(config, list | tuple):
        return _group(config)
    raise TypeError(f"got the sparsity {config!r}, expected a number, a dictionary, or a list of them")


def _group(configs: Any) -> Group:
    group = Group()
    for config in configs:
        if not isinstance(config, Mapping):
            raise TypeError(f"got {config!r} in a list of sparsities, expected a dictionary")
        arguments = dict(config)
        kind = map_sparsity_algorithm(arguments.pop("algorithm", "static"))
        param_filter = arguments.pop("param_filter", None)
        group.add(param_filter, kind(**arguments))
    return group
