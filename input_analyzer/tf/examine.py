"""The examination of a tf.data pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from input_analyzer.analysis import Finding
from input_analyzer.applying import left_alone, optional
from input_analyzer.examine import Examination, function_name, function_source
from input_analyzer.findings import find
from input_analyzer.findings.expected_gains import not_speed
from input_analyzer.findings.sharding import EACH_ONCE, same_records
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.pipeline import Pipeline
from input_analyzer.tf import private_caches
from input_analyzer.tf.eager_graph import NeedsEagerError
from input_analyzer.tf.inspection import BY_CHANCE, SHARING_UNKNOWN, inspect
from input_analyzer.tf.mend import Left, mend
from input_analyzer.tf.shared_order import digest_of_order
from input_analyzer.tf.timing import Timing, time_stages
from input_analyzer.tf.worker_records import eager_records_differ


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Traces the input function, times the stages, applies all rules."""

    def make(count: int, index: int) -> Any:
        say("calling the input function")  # each call may take as long as the first one
        return program.build(Shard(count, index))

    try:
        inspection = inspect(
            make,
            seed=program.seed,
            memory_bytes=order.memory_bytes or node.memory().available_bytes,
            eager=program.eager,
            role=lambda count, index: program.role(Shard(count, index)),
            names=lambda spec: program.component_names(),
        )
    except NeedsEagerError as error:
        return _unseen(program, error, say)
    seconds = order.stage_seconds
    timing = time_stages(inspection.traced, seconds, say) if seconds > 0 else Timing(())
    context = replace(
        inspection.context,
        times={time.stage: time for time in timing.times},
        cpus=order.cpus_per_task or len(os.sched_getaffinity(0)),
    )
    found = find(inspection.pipeline, context)
    # As one of two workers: whether there is a shard to be mended shows only there.
    read = inspection.of_several or inspection.traced
    by_chance = {"shard-missing"} if context.by_chance else set()
    whole = mend(read.dataset, {finding.id for finding in found} - by_chance, 2, 0)
    findings = marked(found, [*whole.left, *(Left(name, None, None, BY_CHANCE) for name in by_chance)])
    shared = {finding.id for finding in findings if finding.id == "shard-missing" and finding.proved}
    compared = not context.by_chance and (shared or inspection.context.sharded)
    return Examination(
        pipeline=inspection.pipeline,
        times=timing.times,
        findings=findings,
        sharded=inspection.context.sharded,
        split=inspection.split,
        notes=(*timing.notes, *inspection.notes, *private_caches.notes()),
        applied=whole.changes,
        applied_by={
            name: mend((read if name in shared else inspection.traced).dataset, {name}, 2, 0).changes
            for name in (*optional(findings), *shared)
        },
        order=digest_of_order(inspection.traced, 2) if compared else "",
    )


def _unseen(program: InputProgram, error: NeedsEagerError, say: Callable[[str], None]) -> Examination:
    """What is known of an input that can be read, but not looked at."""
    note = (
        "What the input function returns cannot be made in a graph, where its stages could be seen: "
        f"{error}. The rates are measured as a run reads it; there are no stages, no findings but one about "
        "what the workers share, and nothing that --apply could mend."
    )
    say("reading the first batches as two workers")
    found = eager_records_differ(
        lambda count, index: program.build(Shard(count, index)),
        2,
        lambda count, index: program.role(Shard(count, index)),
    )
    unknown = (SHARING_UNKNOWN.format(found.unknown),) if found.unknown else ()
    return Examination(
        Pipeline("tensorflow", ()),
        (),
        (_same_records(program),) if found.differ is False else (),
        sharded=found.differ,
        notes=(note, *unknown, *private_caches.notes()),
    )


def _same_records(program: InputProgram) -> Finding:
    finding = Finding(
        "shard-missing",
        "warning",
        function_name(program.function),
        function_source(program.function),
        same_records(1),
        "shard(num_workers, worker_index) before what shuffles, computes or batches, both from TF_CONFIG or "
        "input_context",
        not_speed(EACH_ONCE),
    )
    return left_alone(finding, "its stages cannot be seen")


def marked(findings: Collection[Finding], left: Collection[Left]) -> tuple[Finding, ...]:
    """Findings, those whose mend may deliver other records with the reason."""

    def said(finding: Finding) -> Finding:
        about = (one.reason for one in left if one.speaks_of(finding.id, finding.op, finding.source))
        reason = next(about, None)
        return finding if reason is None else left_alone(finding, reason)

    return tuple(map(said, findings))
