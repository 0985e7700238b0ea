"""Files are read several at a time."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.context import READERS, Context, finding, number
from input_analyzer.findings.gains import argument, files_at_once, side_by_side
from input_analyzer.pipeline import AUTOTUNE, Pipeline


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
            )


def reader(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A reader of several files reads one at a time; an evaluation needs them in their order."""
    if not context.training:
        return
    for stage in pipeline.stages:
        files = number(stage, "files")
        one_by_one = "FlatMapDataset" in stage.kinds
        if stage.op in READERS and not stage.inputs and one_by_one and files and files > 1:
            wanted = files_at_once(context.cpus)
            yield finding(
                "parallel-reads-missing",
                "info",
                stage,
                f"it reads its {files} files one after the other",
                f"{stage.op}(..., num_parallel_reads={argument(wanted)})",
                side_by_side(pipeline, context, stage),
                None if wanted == AUTOTUNE else wanted,
            )


RULES = (flat_map, reader)
