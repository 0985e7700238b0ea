"""Steps on the system's engine, called as its server calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def stepping(engine: Any, chunk: tuple[np.ndarray, ...]) -> Callable[[int], None]:
    """A function that runs a number of steps, a chunk in a call.

    Args:
        engine: Has its program and its state.
        chunk: Contiguous batches, `[steps of a call, ...]` for each tensor.
    """
    steps_of_call = len(chunk[0])

    def run(steps: int) -> None:
        # As the server does: the next call is on its way while the outputs of the previous are read.
        pending = engine.dispatch(chunk, 0, steps_of_call)
        for _ in range(steps // steps_of_call - 1):
            following = engine.dispatch(chunk, 0, steps_of_call)
            pending.wait()
            pending = following
        pending.wait()

    return run


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy on a multiple of 64 bytes, as the rows of the system's ring are."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    result = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result
