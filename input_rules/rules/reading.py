"""Files are read several at a time."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage
from input_rules.rules.context import READERS, Context, choosing_behind, finding, number
from input_rules.rules.expected_gains import argument, files_at_once, side_by_side


def flat_map(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Files one after the other, as the author wrote it."""
    for stage in pipeline.stages:
        if stage.op == "flat_map" and stage.attributes.get("reads"):
            wanted = files_at_once(context.cpus)
            yield finding(
                "flat-map-of-files",
                "warning",
                stage,
                "it reads one file after the other, each to its end, so nothing overlaps with the wait for "
                "the file system",
                f"interleave(..., cycle_length={argument(wanted)}, num_parallel_calls=CS_AUTOTUNE)",
                side_by_side(pipeline, context, stage),
                None if wanted == AUTOTUNE else wanted,
                choosing_behind(pipeline, stage),
            )


def reader(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A reader of several files reads one at a time; an evaluation needs them in their order."""
    if not context.training:
        return
    for stage in pipeline.stages:
        files = _files(pipeline, stage)
        one_by_one = "FlatMapDataset" in stage.kinds
        if stage.op in READERS and one_by_one and files != 1 and (files or stage.inputs):
            wanted = files_at_once(context.cpus)
            yield finding(
                "parallel-reads-missing",
                "info",
                stage,
                f"it reads its {f'{files} files' if files else 'files'} one after the other",
                f"{stage.op}(..., num_parallel_reads={argument(wanted)})",
                side_by_side(pipeline, context, stage),
                None if wanted == AUTOTUNE else wanted,
                choosing_behind(pipeline, stage),
            )


def _files(pipeline: Pipeline, stage: Stage) -> int | None:
    """How many files a reader has: by its own list of names, or by a dataset of them that it is given."""
    counts = (number(one, "files") for one in (stage, *pipeline.before(stage)))
    return next((count for count in counts if count is not None), None)


RULES = (flat_map, reader)
