"""How long the device of a wafer computes what needs no other wafer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

# JAX does not annotate it.
_block_until_ready: Callable[[Any], Any] = jax.block_until_ready


class CallClock:
    """Notes when calls of the device have ended, in a thread of its own: who makes them waits for others.

    Attributes:
        computing_s: seconds of all calls so far that have no sums over wafers.
    """

    def __init__(self) -> None:
        self.computing_s = 0.0
        self._calls: queue.SimpleQueue[tuple[float, Sequence[Any], bool]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="clock", daemon=True).start()

    def called(self, began_s: float, results: Sequence[Any], has_sums: bool) -> None:
        """A call has been made.

        Args:
            began_s: Monotonic time before it.
            results: Of the call.
            has_sums: Whether it waits for other wafers.
        """
        self._calls.put((began_s, results, has_sums))

    def _watch(self) -> None:
        ended_s = 0.0
        while True:
            began_s, results, has_sums = self._calls.get()
            try:
                _block_until_ready(results)
            except Exception:
                return  # told by whoever reads the results
            del results
            before_s, ended_s = ended_s, time.monotonic()
            if not has_sums:
                self.computing_s += ended_s - max(began_s, before_s)
