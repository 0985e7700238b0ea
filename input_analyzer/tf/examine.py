"""The examination of a tf.data pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from input_analyzer.analysis import Finding
from input_analyzer.applying import left_alone, optional
from input_analyzer.examine import Examination
from input_analyzer.findings import find
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.pipeline import Pipeline
from input_analyzer.tf import apart
from input_analyzer.tf.eager_graph import NeedsEagerError
from input_analyzer.tf.inspection import inspect
from input_analyzer.tf.mend import Left, mend
from input_analyzer.tf.timing import Timing, time_stages


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Traces the input function, times the stages, applies all rules."""

    def make(count: int, index: int) -> Any:
        return program.build(Shard(count, index))

    try:
        inspection = inspect(
            make,
            seed=program.seed,
            memory_bytes=node.memory().available_bytes,
            eager=program.eager,
            role=lambda count, index: program.role(Shard(count, index)),
        )
    except NeedsEagerError as error:
        return _unseen(error)
    seconds = order.stage_seconds
    timing = time_stages(inspection.traced, seconds, say) if seconds > 0 else Timing(())
    context = replace(
        inspection.context,
        times={time.stage: time for time in timing.times},
        cpus=order.cpus_per_task or len(os.sched_getaffinity(0)),
    )
    found = find(inspection.pipeline, context)
    # As one of two workers: whether there is a shard to be mended shows only there.
    whole = mend(inspection.traced.dataset, {finding.id for finding in found}, 2, 0)
    findings = marked(found, whole.left)
    return Examination(
        pipeline=inspection.pipeline,
        times=timing.times,
        findings=findings,
        sharded=inspection.context.sharded,
        split=inspection.split,
        notes=(*timing.notes, *apart.notes()),
        applied=whole.changes,
        applied_by={
            name: mend(inspection.traced.dataset, {name}, 2, 0).changes for name in optional(findings)
        },
    )


def _unseen(error: NeedsEagerError) -> Examination:
    """What is known of an input that can be read, but not looked at."""
    note = (
        "The input function works only when it is called eagerly, not in a graph, where its stages could be "
        f"seen ({error}): the rates are measured as a run reads it; there are no stages, no findings and "
        "nothing that --apply could mend."
    )
    return Examination(Pipeline("tensorflow", ()), (), (), notes=(note, *apart.notes()))


def marked(findings: Collection[Finding], left: Collection[Left]) -> tuple[Finding, ...]:
    """Findings, those whose mend may deliver other records with the reason."""

    def said(finding: Finding) -> Finding:
        about = (one.reason for one in left if one.speaks_of(finding.id, finding.op, finding.source))
        reason = next(about, None)
        return finding if reason is None else left_alone(finding, reason)

    return tuple(map(said, findings))
