"""Rules about the order of records: shuffles that mix well, and runs that can be repeated."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.base import (
    Context,
    choosing_behind,
    finding,
    flag,
    not_speed,
    number,
    reads_batches,
    records_at,
    shuffles,
)
from input_rules.throughput import is_parallel

BATCHES_IN_BUFFER = 10
"""A buffer of so many batches is what the input functions of the original's model zoo use by default."""


def find_shuffle_after_batch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def find_small_shuffle_buffer(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


_CONTINUED = "a training that is continued sees each record of an epoch once"


def find_nondeterministic_order(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Elements come in the order in which they happen to be ready."""
    for stage in pipeline.stages:
        if flag(stage, "any_order") and any(map(_may_be_parallel, pipeline.before(stage))):
            yield finding(
                "order-not-deterministic",
                "warning",
                stage,
                "its options let results come in the order in which they happen to be ready, so a training "
                "that is continued leaves out other batches than those it has seen",
                "options.deterministic = True, or left out",
                not_speed(_CONTINUED),
            )
        if stage.attributes.get("deterministic") == "false" or flag(stage, "sloppy"):
            yield finding(
                "order-not-deterministic",
                "warning",
                stage,
                "its results come in the order in which they happen to be ready, so a training that is "
                "continued leaves out other batches than those it has seen",
                "deterministic=True, or the argument left out",
                not_speed(_CONTINUED),
            )


def _may_be_parallel(stage: Stage) -> bool:
    """Whether several results may be made at once, and nothing in the call itself says that order is kept."""
    if stage.attributes.get("deterministic") == "true":
        return False
    return stage.op in ("map", "interleave") or is_parallel(stage)


def find_stateful_randomness(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Random numbers out of a state."""
    for stage in pipeline.stages:
        if flag(stage, "random"):
            yield finding(
                "random-state",
                "warning",
                stage,
                "it draws random numbers out of a state: with parallel calls, and after a restart, a record "
                "gets other numbers",
                "tf.random.stateless_* and tf.image.stateless_* with a seed made of the number of the record",
                not_speed("a training can be repeated, and continued as if it had not been interrupted"),
            )


def find_unseeded_shuffle(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Another order in every run."""
    if not context.training:
        return
    for stage in pipeline.stages:
        if stage.op in ("shuffle", "list_files") and is_unseeded(stage):
            yield finding(
                "shuffle-without-seed",
                "info",
                stage,
                "without a seed the order differs from run to run, so a training that is continued leaves "
                "out other batches than those it has seen",
                f"{stage.op}(..., seed=...), or tf_random_seed in the configuration",
                not_speed(_CONTINUED),
            )


def is_unseeded(stage: Stage) -> bool:
    """Whether a stage shuffles at its end in an order that no seed decides."""
    return shuffles(stage) and number(stage, "seed") == 0 and number(stage, "seed2") == 0
