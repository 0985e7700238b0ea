"""Batches of one size, and maps that work on whole batches."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.context import Context, finding, flag
from input_analyzer.findings.gains import not_speed, spared
from input_analyzer.pipeline import Pipeline, Stage

MUCH = 0.05
"""A measured part of the time from which a change is worth while."""


def drop_remainder(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The last batch of an epoch may be smaller."""
    for stage in pipeline.stages:
        if stage.op in ("batch", "padded_batch") and stage.attributes.get("drop_remainder") is False:
            if _fixed_later(pipeline, stage):
                continue
            yield finding(
                "drop-remainder-missing",
                "error",
                stage,
                "the last batch may be smaller, so the size of a batch is not known, and the CS system is "
                "programmed for one fixed shape",
                f"{stage.op}(..., drop_remainder=True)",
                not_speed(
                    "the program can be compiled; of an epoch at most the last incomplete batch is left out"
                ),
            )


def _fixed_later(pipeline: Pipeline, stage: Stage) -> bool:
    """Whether the pipeline delivers fixed shapes all the same, e.g. as it batches again."""
    if any(other.op in ("batch", "padded_batch", "unbatch") for other in pipeline.after(stage)):
        return True
    return bool(pipeline.element) and all(
        tensor.shape is not None and None not in tensor.shape for tensor in pipeline.element
    )


def map_before_batch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A function that could work on whole batches is called for every record."""
    for stage in pipeline.stages:
        if stage.op != "map" or not _vectorizes(pipeline, stage):
            continue
        batch = next((other for other in pipeline.after(stage) if other.op == "batch"), None)
        between = [s for s in pipeline.after(stage) if batch is not None and s.position < batch.position]
        movable = ("shuffle", "repeat", "map", "prefetch", "cache")
        if batch is None or any(other.op not in movable for other in between):
            continue
        share = context.share((stage,))
        if share is not None and share < MUCH:
            continue
        name = stage.attributes.get("function")
        called = f"'{name}' is" if name and name != "lambda" else "its function is"
        yield finding(
            "map-before-batch",
            "info",
            stage,
            f"{called} called for every record, though nothing in it needs single records: a call "
            "for a batch costs little more than one for a record",
            "batch(...) first, then map() with a function for whole batches",
            spared(pipeline, context, (stage,)),
        )


def _vectorizes(pipeline: Pipeline, stage: Stage) -> bool:
    traits = stage.attributes
    if flag(stage, "single") or flag(stage, "free") or flag(stage, "random") or "function" not in traits:
        return False
    if "free" not in traits or not stage.inputs:
        return False
    before = pipeline.by_name[stage.inputs[0]]
    return before.attributes.get("fixed_shape") is True or before.attributes.get("scalars") is True


RULES = (drop_remainder, map_before_batch)
