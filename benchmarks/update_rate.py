"""Rate of the update at MemoryX against the bandwidth of the machine's memory, on the same cores.

Both count bytes that have to move: of the update every weight, moment and gradient that it reads and every
new value, gradients twice where they are clipped; of the measure (STREAM's triad, `a = b + 3 c`, compiled by
XLA as the update is) two arrays that are read and one that is written. They run in turn in one process.

    python -m benchmarks.update_rate ARTIFACT DIRECTORY
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

TRIAD_ELEMENTS = 32 << 20
"""Of each array: 128 MB, more than caches hold."""

ROUNDS, WARM = 9, 2


def main() -> None:
    """Prints the figures as JSON."""
    print(json.dumps(rates(Path(sys.argv[1]), Path(sys.argv[2]))))


def rates(artifact: Path, directory: Path) -> dict[str, float]:
    """Bytes a second: `update`, `triad`; `ratio`, the median of those of each round.

    Args:
        artifact: of a step in layers.
        directory: where state lies.
    """
    from cs_system.engine.device import start_device
    from cs_system.engine.machine import limit_threads

    os.environ["JAX_PLATFORMS"] = "cpu"
    threads = limit_threads(None)
    limit_threads(1)  # as in MemoryX
    start_device(None, dispatches_async=False)
    update, update_bytes = _update(artifact, directory, threads)
    triad, triad_bytes = _triad(threads)
    found: dict[str, list[float]] = {"update": [], "triad": []}
    for number in range(WARM + ROUNDS):
        for name, body, nbytes in (("update", update, update_bytes), ("triad", triad, triad_bytes)):
            began = time.perf_counter()
            body()
            if number >= WARM:
                found[name].append(nbytes / (time.perf_counter() - began))
    ratios = [ours / machine for ours, machine in zip(found["update"], found["triad"], strict=True)]
    return {name: statistics.median(of) for name, of in (*found.items(), ("ratio", ratios))}


def _update(path: Path, directory: Path, threads: int) -> tuple[Callable[[], Any], int]:
    """The update of a step as MemoryX computes it, and the bytes that it has to move."""
    from cgc.artifact import open_artifact
    from cs_system.memoryx.engine import select_executables
    from cs_system.memoryx.updates import Memory, compile_functions
    from cs_toolkit.layered_step import schedule_from_json, shards

    artifact = open_artifact(path)
    schedule = schedule_from_json(artifact.step.schedule)
    data = {e.name: artifact.executable_bytes(e.name) for e in artifact.step.executables}
    executables = select_executables(artifact.step, data, schedule.memory_calls())
    (whole,) = shards(schedule, 1)
    memory = Memory(whole, *compile_functions(schedule, executables), directory, threads)
    random = np.random.default_rng(1)
    for tensors in (memory.state, memory.arrived):
        for number in tensors:
            if tensors[number].dtype == np.float32:
                random.standard_normal(out=tensors[number], dtype=np.float32)
                np.square(tensors[number], out=tensors[number])
    known = memory.begin_step()
    moved = sum(
        memory.state[number].nbytes if number in memory.state else memory.arrived[number].nbytes
        for call in schedule.update_calls()
        for number in dict.fromkeys(call.arguments)
        if number in memory.state or number in memory.arrived
    )
    moved += sum(memory.state[old].nbytes for old in schedule.replacements)
    return partial(memory.update, known, _alone, None, _nobody), moved


def _alone(index: int, given: list[np.ndarray]) -> list[np.ndarray]:
    """Is asked for what other parts contribute, where there are others."""
    raise AssertionError(f"round {index} has no other parts")


def _nobody(state: frozenset[int]) -> None:
    """Gets the changes."""


def _triad(threads: int) -> tuple[Callable[[], Any], int]:
    import jax
    import jax.numpy as jnp

    jit: Callable[..., Any] = jax.jit
    compute = jit(lambda _, b, c: b + 3 * c, donate_argnums=0, keep_unused=True)
    size = TRIAD_ELEMENTS // threads
    parts = [[jnp.full(size, value, jnp.float32) for value in (0, 1, 2)] for _ in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def part(arrays: list[Any]) -> None:
        arrays[0] = compute(*arrays)
        arrays[0].block_until_ready()

    return lambda: list(pool.map(part, parts)), 3 * 4 * size * threads


if __name__ == "__main__":
    main()
