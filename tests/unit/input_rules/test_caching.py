"""Findings about caches, by memory and for several workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from input_rules.findings import Finding
from input_rules.pipeline import StageTime
from input_rules.tf.inspection import inspect

from .rule_cases import (
    AUTOTUNE,
    RECORDS,
    finish,
    found,
    slices,
)


def test_caches_are_weighed_against_the_memory() -> None:
    def cached() -> Any:
        return finish(slices().cache())

    def uncached() -> Any:
        return finish(slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE))

    size = RECORDS.nbytes
    assert found(cached, memory_bytes=size)["cache-does-not-fit"].severity == "error"
    assert "cache-does-not-fit" not in found(cached, memory_bytes=2 * size)
    times = {"map": StageTime("map", 90.0, 0.0), "batch": StageTime("batch", 10.0, 0.0)}
    fits = found(uncached, memory_bytes=10 * size, times=times, cpus=1)["cache-would-fit"]
    assert fits.severity == "warning"
    assert str(fits.gain) == (
        "expected: about 10 times the rate with 1 CPU from the second epoch on, not counting the cost of "
        "passing elements on"
    )
    assert "cache-would-fit" not in found(uncached, memory_bytes=size, times=times)
    assert "cache-would-fit" not in found(uncached, memory_bytes=10 * size)
    in_memory = {"from_tensor_slices": StageTime("from_tensor_slices", 90.0, 0.0)}
    assert "cache-would-fit" not in found(uncached, memory_bytes=10 * size, times=in_memory)


@pytest.mark.parametrize(("workers", "severity"), [(1, "warning"), (3, "error")])
def test_a_cache_file_is_to_be_of_one_worker(workers: int, severity: str, tmp_path: Path) -> None:
    def input_with(name: Callable[[int], str]) -> dict[str, Finding]:
        def make(count: int, index: int) -> Any:
            return finish(slices().shard(count, index).cache(str(tmp_path / name(index))))

        return {finding.id: finding for finding in inspect(make, workers=workers).findings}

    shared = input_with(lambda index: "kept")["cache-file-shared"]
    assert (shared.severity, shared.op) == (severity, "cache")
    assert "cache-file-shared" not in input_with(lambda index: f"kept-{index}")


def test_a_cache_after_a_range_is_weighed_too() -> None:
    def make(step: int) -> Any:
        wide = tf.data.Dataset.range(3, 1_000_003, step).shard(2, 0).map(lambda k: tf.fill([1000], k))
        return finish(wide.cache())

    # 8000 bytes a record, of which a worker keeps every second one.
    assert "cache-does-not-fit" in found(lambda: make(1), memory_bytes=10**9)
    assert "cache-does-not-fit" not in found(lambda: make(10), memory_bytes=10**9)
    assert "cache-does-not-fit" not in found(lambda: make(-1), memory_bytes=10**9)
