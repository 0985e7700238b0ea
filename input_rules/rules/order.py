"""Rules about the order of records: shuffles that mix well, and runs that are reproducible."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.base import (
    Context,
    count_records,
    flag,
    make_finding,
    non_speed_gain,
    number,
    order_dependence,
    reads_batches,
    shuffles,
)
from input_rules.throughput import is_parallel

# The default of the input functions in the original's model zoo.
BATCHES_IN_BUFFER = 10


def find_shuffle_after_batch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find shuffles of whole batches."""
    for stage in pipeline.stages:
        if stage.op == "shuffle" and reads_batches(pipeline, stage):
            yield make_finding(
                "shuffle-after-batch",
                "warning",
                stage,
                "it follows batch(): the order of batches is mixed, but a batch always has the same "
                "records, and the buffer holds whole batches",
                "shuffle() before batch()",
                non_speed_gain("every epoch has other records in each batch"),
            )


def find_small_shuffle_buffer(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find shuffle buffers of so few batches that only neighboring records are mixed."""
    for stage in pipeline.stages:
        if stage.op != "shuffle" or reads_batches(pipeline, stage):
            continue
        size = number(stage, "buffer_size")
        later = list(pipeline.after(stage))
        of_files = any(other.attributes.get("reads") for other in later)
        if flag(stage, "part") and not of_files:
            continue  # parts of records: their order is the author's choice
        records = count_records(pipeline, pipeline.by_name[stage.inputs[0]]) if stage.inputs else None
        wanted = BATCHES_IN_BUFFER * pipeline.samples_per_element
        if of_files:
            wanted = records or 0
        elif records is not None:
            wanted = min(wanted, records)
        if size is not None and size < wanted:
            of = "file names" if of_files else "records"
            yield make_finding(
                "shuffle-buffer-small",
                "warning",
                stage,
                f"the buffer holds {size} {of}, batches have {pipeline.samples_per_element} records: records "
                "are mixed only with their neighbors, and training sees them almost in the order of the data",
                f"shuffle({wanted})",
                non_speed_gain("records are mixed with distant ones, too"),
                wanted,
                order_dependence(pipeline, stage),
            )


_RESUMED = "a resumed training run sees each record of an epoch once"


def find_nondeterministic_order(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find elements that come in the order in which they happen to be ready."""
    for stage in pipeline.stages:
        parallel = any(
            other.attributes.get("deterministic") != "true"  # that preserves the order
            and (other.op in ("map", "interleave") or is_parallel(other))
            for other in pipeline.before(stage)
        )
        if flag(stage, "any_order") and parallel:
            yield make_finding(
                "order-not-deterministic",
                "warning",
                stage,
                "its options let results come in the order in which they happen to be ready, so a resumed "
                "training run skips other batches than those it has seen",
                "options.deterministic = True, or no such option",
                non_speed_gain(_RESUMED),
            )
        if stage.attributes.get("deterministic") == "false" or flag(stage, "sloppy"):
            yield make_finding(
                "order-not-deterministic",
                "warning",
                stage,
                "its results come in the order in which they happen to be ready, so a resumed training run "
                "skips other batches than those it has seen",
                "deterministic=True, or no such argument",
                non_speed_gain(_RESUMED),
            )


def find_stateful_randomness(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find random numbers that are drawn from a state."""
    for stage in pipeline.stages:
        if flag(stage, "random"):
            yield make_finding(
                "random-state",
                "warning",
                stage,
                "it draws random numbers from a state: with parallel calls, and after a restart, a record "
                "gets other numbers",
                "tf.random.stateless_* and tf.image.stateless_* with a seed derived from the index of the "
                "record",
                non_speed_gain(
                    "a training run is reproducible, and resumes as if it had not been interrupted"
                ),
            )


def find_unseeded_shuffle(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find shuffles that have another order in every run."""
    if not context.training:
        return
    for stage in pipeline.stages:
        if stage.op in ("shuffle", "list_files") and is_unseeded(stage):
            yield make_finding(
                "shuffle-without-seed",
                "info",
                stage,
                "without a seed the order differs from run to run, so a resumed training run skips other "
                "batches than those it has seen",
                f"{stage.op}(..., seed=...), or tf_random_seed in the configuration",
                non_speed_gain(_RESUMED),
            )


def is_unseeded(stage: Stage) -> bool:
    """Return True if the last shuffle of a stage has no seed."""
    return shuffles(stage) and number(stage, "seed") == 0 and number(stage, "seed2") == 0
