"""The state after one step, read while the next steps change it.

Before a tensor is changed that is still to be read, it is copied. The copies have a limit: an update waits
where a reader is so slow that they would take more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from cs_system.memoryx.store import MappedTensors

COPIED_BYTES = 1 << 30
"""Of copies at once; one update may always copy what it changes, however much that is."""


class Snapshot:
    """The state after a step.

    Args:
        state: As it is.
        step: Whose state is read.
        numbers: Of the tensors that are to be read, each once.
        limit_bytes: Of copies.
    """

    def __init__(
        self, state: MappedTensors, step: int, numbers: Iterable[int], limit_bytes: int = COPIED_BYTES
    ) -> None:
        self.step = step
        self._state, self._limit = state, limit_bytes
        self._waiting = set(numbers)
        self._copies: dict[int, np.ndarray] = {}
        self._changed = threading.Condition()

    @property
    def copied_bytes(self) -> int:
        """Of the copies that wait to be read."""
        return sum(array.nbytes for array in self._copies.values())

    def before_change(self, step: int, numbers: Iterable[int]) -> None:
        """Copies what a step is about to change and nobody has read; waits while there is no room.

        Args:
            step: That changes it.
            numbers: Of the tensors.
        """
        if step <= self.step:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(numbers))
            for number in self._waiting.intersection(numbers):
                self._copies[number] = np.array(self._state[number])
            self._waiting.difference_update(numbers)

    def take(self, number: int) -> np.ndarray | None:
        """A tensor, which is there since its step; None where it is not to be read, or has been."""
        with self._changed:
            if number in self._copies:
                found = self._copies.pop(number)
                self._changed.notify_all()
                return found
            if number not in self._waiting:
                return None
            self._waiting.remove(number)
            found = np.array(self._state[number])
            self._changed.notify_all()
            return found

    def end(self) -> None:
        """Nothing more is read."""
        with self._changed:
            self._waiting.clear()
            self._copies.clear()
            self._changed.notify_all()

    def _has_room(self, numbers: Iterable[int]) -> bool:
        new = sum(self._state[number].nbytes for number in self._waiting.intersection(numbers))
        return not new or not self._copies or self.copied_bytes + new <= self._limit
