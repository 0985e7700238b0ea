"""Names in the metadata of a checkpoint, and settings of the original's checkpoints, without effect here.

Tensors of a checkpoint are mapped, so that nothing has to be cached, and a checkpoint refers to no other
file.
"""

from __future__ import annotations

import sys
from types import TracebackType

# Attribute with the version of the program that wrote it.
__CSTORCH_VERSION__ = "__cstorch_version__"

constants = serializers = sys.modules[__name__]  # modules of the original


class ValueContext:
    """A value that holds in a `with` block: `with setting(True): ...`.

    Args:
        default: The value outside of all blocks.
    """

    def __init__(self, default: object) -> None:
        self.value = default
        self._next: list[object] = []
        self._before: list[object] = []

    def __call__(self, value: object) -> ValueContext:
        """Return the context of a block with another value."""
        self._next.append(value)
        return self

    def __enter__(self) -> ValueContext:
        self._before.append(self.value)
        self.value = self._next.pop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.value = self._before.pop()

    def __bool__(self) -> bool:
        return bool(self.value)


cache_deferred_tensors = ValueContext(True)
use_external_link = ValueContext(False)
