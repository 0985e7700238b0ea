"""Values of variant tensors: lists of tensors and optional tensors, known only while a graph is imported.

TensorFlow keeps in them what loops and branches hand to their gradients. Loops are unrolled and branches
computed side by side, so every one of them is known item by item, and none reaches the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TensorList:
    """The value of a list of tensors.

    Attributes:
        items: a value each, of any kind; None where nothing was put yet.
        dtype: numpy name of the element type, or "variant".
        is_open: whether TensorFlow would have only some of the items, from the first on, and how many
            depends on the data. Only the gradient of the loop that put them there may take them.
    """

    items: tuple[Any, ...]
    dtype: str
    is_open: bool = False

    def put(self, position: int, item: Any) -> TensorList:
        """The list with one item replaced; as in TensorFlow's TensorArray it grows where it has to."""
        items = [*self.items, *[None] * (position + 1 - len(self.items))]
        items[position] = item
        return replace(self, items=tuple(items))


@dataclass(frozen=True)
class Optional:
    """The value of an optional that holds something."""

    components: tuple[Any, ...]


@dataclass(frozen=True)
class Either:
    """The value of an optional that the branches of a condition gave.

    Attributes:
        selector: what the branch is chosen by.
        options: what each branch gave; it is asked for only where the same selector chooses again, in the
            gradient of the condition.
    """

    selector: Any
    options: tuple[Any, ...]


class Missing:
    """The value of an empty optional: what the branch that was not taken would have given."""


MISSING = Missing()
