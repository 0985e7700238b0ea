"""Arguments and results of operations: tuples, lists and dicts of tensors and plain values.

PyTorch's pytree knows more kinds of containers, and takes a third of the time of a recording to ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """The same nest, with what a function makes of each leaf."""
    kind = type(nest)
    if kind is tuple:
        return tuple([mapped(function, x) for x in nest])
    if kind is list:
        return [mapped(function, x) for x in nest]
    if kind is dict:
        return {name: mapped(function, x) for name, x in nest.items()}
    return function(nest)


def leaves(nest: Any) -> Iterator[Any]:
    """The leaves of a nest, in order."""
    kind = type(nest)
    if kind is tuple or kind is list:
        for x in nest:
            yield from leaves(x)
    elif kind is dict:
        for x in nest.values():
            yield from leaves(x)
    else:
        yield nest
