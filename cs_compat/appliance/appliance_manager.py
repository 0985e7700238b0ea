"""Groups of tensors that programs of releases 1.7 to 1.9 change on their way to the system."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TensorSendPayload:
    """One tensor on its way to the system.

    Attributes:
        fw_name: Name of the tensor in the program.
        tensor: Its elements.
    """

    fw_name: str
    tensor: Any = None


@dataclass
class TensorGroup:
    """Tensors that are sent together.

    Attributes:
        tensors: The tensors.
        closure: Changes them before they are sent.
    """

    tensors: list[TensorSendPayload] = field(default_factory=list)
    closure: Callable[[list[TensorSendPayload]], Any] | None = None


TensorGrouper = Callable[[Iterable[TensorSendPayload]], Iterable[TensorGroup]]
"""Groups the tensors of a run."""
