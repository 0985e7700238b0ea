"""Groups of wafers that train a step in layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from cs_system.engine.base import Engine
from cs_system.memoryx.config import MemoryxConfig
from cs_system.swarmx.group import GroupEngine
from cs_system.swarmx.hosts import WaferProcess

from .streamed_steps import Streamed


@contextmanager
def group(stack: Streamed, place: MemoryxConfig, count: int) -> Iterator[GroupEngine]:
    engine = GroupEngine(stack.compiled, stack.schedule, stack.data, place, count)
    try:
        engine.put_state(stack.state)
        yield engine
    finally:
        engine.free()


def pids_of(engine: GroupEngine) -> list[int]:
    """The processes of its wafers."""
    return [wafer.pid for wafer in engine.wafers if isinstance(wafer, WaferProcess)]


def train(engine: Engine, stack: Streamed, last: int | None = None) -> list[np.ndarray]:
    pending = [engine.dispatch([array[None] for array in batch], 0, 1) for batch in stack.batches[:last]]
    return [step.wait()["output_0"] for step in pending]
