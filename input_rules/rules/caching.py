"""Rules about caches: whether they fit into memory, and the time that they would save."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.formatting import format_bytes as in_bytes
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.base import (
    Context,
    count_records,
    flag,
    make_finding,
    non_speed_gain,
    number,
    reshuffles,
    time_saving_gain,
)

# Fraction of a worker's memory that a cache may take to be recommended.
RECOMMENDED_MEMORY = 0.5
# Expected ratio of rates from which a missing cache is a warning rather than a hint.
WARNING_RATIO = 2.0
# Fraction of a worker's memory above which a cache does not fit.
LARGEST_MEMORY = 0.9
# Fraction of the measured time that a cache must save to be recommended.
WORTHWHILE_SAVING = 0.25


def find_oversized_cache(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find caches that do not fit into the memory."""
    for stage in pipeline.stages:
        if stage.op != "cache" or stage.attributes.get("filename"):
            continue
        size = _epoch_bytes(pipeline, stage)
        if size is None or context.memory_bytes is None:
            continue
        if size > LARGEST_MEMORY * context.memory_bytes:
            yield make_finding(
                "cache-does-not-fit",
                "error",
                stage,
                f"an epoch takes {in_bytes(size)} here, a worker may use {in_bytes(context.memory_bytes)}: "
                "it will be killed before the end of the first epoch",
                "cache() earlier, where elements are smaller; cache(filename); or more workers with shards",
                non_speed_gain("the run survives the first epoch"),
            )


def find_shared_cache_file(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find caches on disk that all workers would write to the same file."""
    for stage in pipeline.stages:
        if stage.op == "cache" and stage.attributes.get("filename") in context.shared_caches:
            yield make_finding(
                "cache-file-shared",
                "error" if context.workers > 1 else "warning",
                stage,
                "the file is the same for all workers: one that starts while another fills it fails, as "
                "TensorFlow locks it; one that starts later reads the records of the other",
                "cache(filename) with the number of the worker in the name, from TF_CONFIG or input_context",
                non_speed_gain("several workers survive the first epoch, each with its own records"),
            )


def find_cached_randomness(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find random changes whose first results are cached for all epochs."""
    for stage in pipeline.stages:
        if stage.op != "cache":
            continue
        before = list(pipeline.before(stage))
        cause = next((other for other in before if reshuffles(other) or flag(other, "random")), None)
        if cause is not None and context.training:
            yield make_finding(
                "cache-after-random",
                "warning",
                stage,
                f"the {cause.op} of {cause.source or 'a library'} before it is random: from the second epoch "
                "on its results are those of the first",
                f"cache() before {cause.op}()",
                non_speed_gain("every epoch is shuffled and augmented differently"),
            )


def find_missing_cache(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find work that every epoch repeats and whose results would fit into memory."""
    if any(stage.op == "cache" for stage in pipeline.stages) or context.memory_bytes is None:
        return
    best: tuple[float, Stage, int, tuple[Stage, ...]] | None = None
    for stage in pipeline.stages:
        before = (*pipeline.before(stage), stage)
        if any(
            reshuffles(other) or other.op in ("repeat", "from_generator") or flag(other, "random")
            for other in before
        ):
            continue  # its elements may differ from epoch to epoch
        # Sources in memory cost as much as a cache.
        saved_stages = tuple(other for other in before if other.op not in _IN_MEMORY)
        size, share = _epoch_bytes(pipeline, stage), context.share(saved_stages)
        if (
            size is None
            or share is None
            or size > RECOMMENDED_MEMORY * context.memory_bytes
            or share < WORTHWHILE_SAVING
        ):
            continue
        if best is None or share > best[0]:
            best = (share, stage, size, saved_stages)
    if best is not None and best[0] < 1:
        _, stage, size, saved_stages = best
        gain = time_saving_gain(pipeline, context, saved_stages, " from the second epoch on")
        # Without measured times, or with Python whose calls may wait, it is a hint.
        measured = gain is not None and gain.cpus is not None
        large = gain is not None and (gain.times is None or gain.times >= WARNING_RATIO)
        python = any(flag(one, "python") for one in saved_stages)
        yield make_finding(
            "cache-would-fit",
            "warning" if measured and large and not python else "info",
            stage,
            f"an epoch takes {in_bytes(size)} here and is the same every time, but is computed every time",
            f"cache() after this {stage.op}()",
            gain,
        )


_IN_MEMORY = frozenset({"from_tensor_slices", "from_tensors", "range"})


def _epoch_bytes(pipeline: Pipeline, stage: Stage) -> int | None:
    """Return the bytes of an epoch at a stage; None if they are unknown without reading it."""
    records = count_records(pipeline, stage)
    while (size := number(stage, "element_bytes")) is None:
        if stage.op not in _KEEPING_ELEMENTS or len(stage.inputs) != 1:
            return None
        stage = pipeline.by_name[stage.inputs[0]]
    return None if records is None else records * size


_KEEPING_ELEMENTS = frozenset({"cache", "shuffle", "repeat", "prefetch", "take", "shard", "with_options"})
