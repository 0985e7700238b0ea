"""Which weights of a model are sparse, by their paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor

ParamFilter: TypeAlias = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""A pattern of paths, as of files, or several, or a function of path and tensor; None for the default."""

_DENSE = ("embedding", "norm", "lm_head", "pe_helper")
"""Parts of paths of weights that stay dense: small ones, and tables of which a step reads a few rows."""


def default_sparse_param_filter(name: str, param: Tensor) -> bool:
    """Return True for weights with two dimensions or more that are no embedding, norm or output head."""
    return param.dim() > 1 and not any(part in name.lower() for part in _DENSE)


def filter_of(given: ParamFilter) -> Callable[[str, Tensor], bool]:
    """Return the function of a filter.

    Raises:
        ValueError: it is none.
    """
    if given is None:
        return default_sparse_param_filter
    if callable(given):
        return given
    patterns = [given] if isinstance(given, str) else given
    if isinstance(patterns, Sequence) and all(isinstance(pattern, str) for pattern in patterns):
        return lambda name, param: any(fnmatchcase(name, pattern) for pattern in patterns)
    raise ValueError(
        f"got param_filter={given!r}, expected a pattern such as '*dense_layer.weight', a list of patterns, "
        "or a function of name and parameter"
    )
