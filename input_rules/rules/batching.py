"""Batches of one size, and maps that work on whole batches."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline, Stage, Tensor
from input_rules.rules.context import (
    Context,
    finding,
    flag,
    is_batched,
    makes_records,
    number,
)
from input_rules.rules.endings import endless_at
from input_rules.rules.expected_gains import not_speed, spared

MUCH = 0.05
"""A measured part of the time from which a change is worth while."""

_ONE_SHAPE = "the CS system is programmed for one fixed shape"

DROPPING = {
    **dict.fromkeys(
        ("batch", "padded_batch", "ragged_batch", "rebatch", "map_and_batch", "dense_to_ragged_batch"),
        "drop_remainder",
    ),
    "make_batched_features_dataset": "drop_final_batch",
}
"""Calls with an argument that leaves out a smaller last batch, and its name."""

_UNBATCHED = frozenset(
    {
        *("image_dataset_from_directory", "text_dataset_from_directory", "audio_dataset_from_directory"),
        "timeseries_dataset_from_array",
    }
)
"""Calls that deliver records with `batch_size=None` (tf.keras.utils)."""


def drop_remainder(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The last batch of an epoch may be smaller."""
    for stage in pipeline.stages:
        left_out = "; of an epoch at most the last incomplete batch is left out"
        if not flag(stage, "smaller_batch"):
            continue
        what = "the last batch may be smaller"
        if makes_records(stage):
            what = "it makes records, the last of which may be smaller"
        if len(stage.inputs) == 1 and endless_at(pipeline, pipeline.by_name[stage.inputs[0]]):
            what, left_out = "no batch is smaller, as the data never end, but its call does not say so", ""
        yield finding(
            "drop-remainder-missing",
            "error",
            stage,
            f"{what}, so the size of a batch is not known, and {_ONE_SHAPE}",
            _whole_batches(pipeline, context, stage),
            not_speed(f"the program can be compiled{left_out}"),
        )


def _whole_batches(pipeline: Pipeline, context: Context, stage: Stage) -> str:
    """What to write so that a call delivers batches of one size."""
    if stage.op in DROPPING:
        return f"{stage.op}(..., {DROPPING[stage.op]}=True)"
    again = f"batch({number(stage, 'batch_size') or 'N'}, drop_remainder=True)"
    if stage.op in _UNBATCHED:
        return f"{stage.op}(..., batch_size=None), and {again} behind it"
    if stage.op == "make_csv_dataset" and context.training:
        return f"{stage.op}(..., num_epochs=None), whose batches go on from one epoch to the next"
    return f"unbatch().{again} behind {stage.op}(), or an argument of it that leaves out the last batch"


def shape_unknown(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A size that is unknown for another reason than a smaller last batch."""
    unknown = [tensor for tensor in pipeline.element if tensor.shape is None or None in tensor.shape]
    if not unknown:
        return
    causes = [stage for stage in pipeline.stages if flag(stage, "unknown_size")]
    explained = causes or any(flag(stage, "smaller_batch") for stage in pipeline.stages)
    # A tensor of a kind of its own (ragged, sparse) does not tell its sizes before the end.
    for stage in causes if explained else [pipeline.last]:
        named = ", ".join(f"{tensor.name} {_shown(tensor)}" for tensor in unknown)
        yield finding(
            "shape-unknown",
            "error",
            stage,
            f"what it delivers has sizes that are not known before the run, and {_ONE_SHAPE}; a batch "
            f"has {named}",
            _fixed_sizes(stage),
            not_speed("the program can be compiled"),
        )


def _shown(tensor: Tensor) -> str:
    if tensor.shape is None:
        return "of any shape"
    return f"[{', '.join('?' if size is None else str(size) for size in tensor.shape)}]"


def _fixed_sizes(stage: Stage) -> str:
    """What to write so that the sizes behind a stage are known."""
    if stage.op == "from_generator":
        return "from_generator(..., output_signature=...) with every size a number"
    if stage.op == "padded_batch":
        return "padded_batch(..., padded_shapes=...) with every size a number"
    if stage.op in ("concatenate", "sample_from_datasets", "choose_from_datasets"):
        return "batches of one size from all of its datasets"
    if stage.op in ("interleave", "flat_map"):
        return "every size a number in its function, as with batch(..., drop_remainder=True) there"
    if stage.op == "bucket_by_sequence_length":  # batches of one bucket differ from those of another
        return "padded_batch(N, padded_shapes=..., drop_remainder=True), one size for all records"
    if stage.op == "map":
        return "tf.ensure_shape(x, [...]) with every size a number on what its function returns"
    return f"map() with tf.ensure_shape(x, [...]), every size a number, behind {stage.op}()"


def map_before_batch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A function that could work on whole batches is called for every record."""
    for stage in pipeline.stages:
        if stage.op != "map" or not _vectorizes(pipeline, stage):
            continue
        # A batch that is batched again makes a record: before it nothing is called for records.
        batches = (other for other in pipeline.after(stage) if other.op == "batch" and is_batched(other))
        batch = next(batches, None)
        between = [s for s in pipeline.after(stage) if batch is not None and s.position < batch.position]
        if batch is None or not all(_moves(pipeline, other) for other in between):
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
            f"{called} called for every record, though nothing in it needs single records: a call for a "
            "batch costs little more than one for a record, but for what it computes",
            "batch(...) first, then map() with a function for whole batches",
            spared(pipeline, context, (stage,)),
        )


def _moves(pipeline: Pipeline, stage: Stage) -> bool:
    """Whether a stage between may stay before batch(), or go behind it too."""
    if stage.op == "map":
        return flag(stage, "free") or _vectorizes(pipeline, stage)
    return stage.op in ("shuffle", "repeat", "prefetch", "cache")


def _vectorizes(pipeline: Pipeline, stage: Stage) -> bool:
    traits = stage.attributes
    if flag(stage, "single") or flag(stage, "free") or flag(stage, "random") or "function" not in traits:
        return False
    if "free" not in traits or not stage.inputs:
        return False
    before = pipeline.by_name[stage.inputs[0]]
    return before.attributes.get("fixed_shape") is True


RULES = (drop_remainder, shape_unknown, map_before_batch)
