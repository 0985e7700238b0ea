"""What a cache in memory would hold, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding, Gain
from input_rules.formatting import format_bytes as in_bytes
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.base import (
    Context,
    finding,
    flag,
    mixes_each_epoch,
    not_speed,
    number,
    records_at,
    spared,
)

FITS = 0.5
"""Part of a worker's memory that a cache may take for it to be recommended."""
TWICE = 2.0
"""Times the rate that a cache promises from which it is more than a hint."""
FULL = 0.9
"""Part of a worker's memory from which a cache is said not to fit."""
MUCH = 0.25
"""Part of the measured time that a cache must save to be recommended."""


def find_oversized_cache(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A cache that fills the memory."""
    for stage in pipeline.stages:
        if stage.op != "cache" or stage.attributes.get("filename"):
            continue
        size = _size(pipeline, stage)
        if size is None or context.memory_bytes is None:
            continue
        if size > FULL * context.memory_bytes:
            yield finding(
                "cache-does-not-fit",
                "error",
                stage,
                f"an epoch takes {in_bytes(size)} here, a worker may use {in_bytes(context.memory_bytes)}: "
                "it will be killed before the first epoch ends",
                "cache() earlier, where elements are smaller; cache(filename); or more workers with shards",
                not_speed("the run lives to its end"),
            )


def find_shared_cache_file(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A cache on disk that all workers would write to the same place."""
    for stage in pipeline.stages:
        if stage.op == "cache" and stage.attributes.get("filename") in context.shared_caches:
            yield finding(
                "cache-file-shared",
                "error" if context.workers > 1 else "warning",
                stage,
                "the file is the same for all workers: one that begins while another fills it fails, as "
                "TensorFlow locks it; one that begins later reads the records of the other",
                "cache(filename) with the number of the worker in the name, from TF_CONFIG or input_context",
                not_speed("several workers live through the first epoch, each with records of its own"),
            )


def find_cached_randomness(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Random changes are made once and kept."""
    for stage in pipeline.stages:
        if stage.op != "cache":
            continue
        before = list(pipeline.before(stage))
        cause = next((other for other in before if mixes_each_epoch(other) or flag(other, "random")), None)
        if cause is not None and context.training:
            yield finding(
                "cache-after-random",
                "warning",
                stage,
                f"the {cause.op} of {cause.source or 'a library'} before it is random: from the second epoch "
                "on all its results are those of the first one",
                f"cache() before {cause.op}()",
                not_speed("every epoch is mixed and changed again"),
            )


def find_missing_cache(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """What every epoch computes again fits into the memory, and takes much of the time."""
    if any(stage.op == "cache" for stage in pipeline.stages) or context.memory_bytes is None:
        return
    best: tuple[float, Stage, int, tuple[Stage, ...]] | None = None
    for stage in pipeline.stages:
        before = (*pipeline.before(stage), stage)
        if any(_varies(other) for other in before):
            continue
        # What is in memory already is read from there as it would be from a cache.
        spared_stages = tuple(other for other in before if other.op not in _IN_MEMORY)
        size, share = _size(pipeline, stage), context.share(spared_stages)
        if size is None or share is None or size > FITS * context.memory_bytes or share < MUCH:
            continue
        if best is None or share > best[0]:
            best = (share, stage, size, spared_stages)
    if best is not None and best[0] < 1:
        _, stage, size, spared_stages = best
        gain = spared(pipeline, context, spared_stages, " from the second epoch on")
        yield finding(
            "cache-would-fit",
            "warning" if _is_much(gain) and not any(flag(one, "python") for one in spared_stages) else "info",
            stage,
            f"an epoch takes {in_bytes(size)} here and is the same every time, but is computed every time",
            f"cache() behind this {stage.op}()",
            gain,
        )


def _is_much(gain: Gain | None) -> bool:
    """Whether what is expected of times that were measured is more than a hint."""
    return gain is not None and gain.cpus is not None and (gain.times is None or gain.times >= TWICE)


_IN_MEMORY = frozenset({"from_tensor_slices", "from_tensors", "range"})


def _varies(stage: Stage) -> bool:
    return mixes_each_epoch(stage) or stage.op in ("repeat", "from_generator") or flag(stage, "random")


def _size(pipeline: Pipeline, stage: Stage) -> int | None:
    """Bytes that an epoch takes at a stage; None where that is not known without reading it."""
    records = records_at(pipeline, stage)
    while (size := number(stage, "element_bytes")) is None:
        if stage.op not in _HANDING_ON or len(stage.inputs) != 1:
            return None
        stage = pipeline.by_name[stage.inputs[0]]
    return None if records is None else records * size


_HANDING_ON = frozenset({"cache", "shuffle", "repeat", "prefetch", "take", "shard", "with_options"})
