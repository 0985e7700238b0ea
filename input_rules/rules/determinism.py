"""A training that is continued sees the batches that an unbroken one would have seen."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.context import Context, finding, flag, number, shuffles
from input_rules.rules.expected_gains import not_speed
from input_rules.throughput import is_parallel

_CONTINUED = "a training that is continued sees each record of an epoch once"


def any_order(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def random_state(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def unseeded_shuffle(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


RULES = (any_order, random_state, unseeded_shuffle)
