"""A shuffle mixes records, out of a buffer that is large enough."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline
from input_rules.rules.context import (
    Context,
    choosing_behind,
    finding,
    flag,
    number,
    reads_batches,
    records_at,
)
from input_rules.rules.expected_gains import not_speed

BATCHES_IN_BUFFER = 10
"""A buffer of so many batches is what the input functions of the original's model zoo use by default."""


def after_batch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Whole batches are shuffled."""
    for stage in pipeline.stages:
        if stage.op == "shuffle" and reads_batches(pipeline, stage):
            yield finding(
                "shuffle-after-batch",
                "warning",
                stage,
                "it stands behind batch(): the order of batches is mixed, but always the same records are "
                "together, and the buffer holds whole batches",
                "shuffle() before batch()",
                not_speed("batches have other records together in every epoch"),
            )


def small_buffer(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A buffer of few batches mixes records only with their neighbours."""
    for stage in pipeline.stages:
        if stage.op != "shuffle" or reads_batches(pipeline, stage):
            continue
        size = number(stage, "buffer_size")
        later = list(pipeline.after(stage))
        of_files = any(other.attributes.get("reads") for other in later)
        if flag(stage, "part") and not of_files:
            continue  # how many of these go into a record, and what it should be made of, is the author's
        records = records_at(pipeline, pipeline.by_name[stage.inputs[0]]) if stage.inputs else None
        wanted = BATCHES_IN_BUFFER * pipeline.samples_per_element
        if of_files:
            wanted = records or 0
        elif records is not None:
            wanted = min(wanted, records)
        if size is not None and size < wanted:
            of = "file names" if of_files else "records"
            yield finding(
                "shuffle-buffer-small",
                "warning",
                stage,
                f"the buffer holds {size} {of}, batches have {pipeline.samples_per_element} records: records "
                "are mixed only with those near to them, and training sees them almost in the order of the "
                "data",
                f"shuffle({wanted})",
                not_speed("records are mixed with those far from them"),
                wanted,
                choosing_behind(pipeline, stage),
            )


RULES = (after_batch, small_buffer)
