"""Rules about batches: sizes and types, maps that could take whole batches, and how a pipeline ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from input_rules.findings import Finding, Gain
from input_rules.pipeline import Pipeline, Stage, Tensor
from input_rules.rules.base import (
    Context,
    called,
    finding,
    flag,
    is_batched,
    makes_records,
    not_speed,
    number,
    overlapped,
    spared,
)

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


def find_smaller_batches(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def find_unknown_sizes(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def find_map_before_batch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


ENDLESS = 1 << 40
"""A count of elements that no training reaches."""
_ALL_STEPS = "the training makes all steps that it was asked for"
_HARMLESS = frozenset({"prefetch", "with_options", "options", "take", "skip"})


def find_missing_repeat(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The data end before the training does."""
    if not context.training or is_endless(pipeline):
        return
    generated = any(flag(stage, "python") for stage in pipeline.stages if not stage.inputs)
    if_it_ends = "where the generator comes to an end, " if generated else ""
    unless = ", unless the generator goes on without end" if generated else ""
    repeats = [
        stage for stage in pipeline.stages if stage.op == "repeat" and (number(stage, "count") or -1) >= 0
    ]
    if repeats:
        yield finding(
            "repeat-finite",
            "warning",
            repeats[-1],
            f"{if_it_ends}the data are repeated {number(repeats[-1], 'count')} times, then the training ends"
            ", whatever number of steps it was asked for",
            f"repeat() without a count{unless}, and the number of steps to train()",
            not_speed(_ALL_STEPS),
        )
    else:
        stage, recommended = _repeat_place(pipeline)
        yield finding(
            "repeat-missing",
            "warning",
            stage,
            f"{if_it_ends}the data end after one epoch, and with them the training, whatever number of steps "
            "it was asked for",
            f"{recommended}{unless}, and the number of steps to train()",
            not_speed(_ALL_STEPS),
        )


def _repeat_place(pipeline: Pipeline) -> tuple[Stage, str]:
    """The stage at which to write it, and what.

    That is before the batches, so that epochs share one, where each batch is then worked on by itself; else
    at the end, but before a prefetch.
    """
    stage = end = pipeline.last
    batch: Stage | None = None
    while len(stage.inputs) == 1 and not makes_records(stage):
        if stage.op in ("batch", "padded_batch"):
            batch = stage
        elif not _is_by_batch(stage):
            break
        if stage is end and stage.op in ("prefetch", "with_options"):
            (end,) = pipeline.inputs_of(stage)
        (stage,) = pipeline.inputs_of(stage)
    if stage.op == "make_csv_dataset":  # it batches, and has an argument for what it does before
        return stage, f"{stage.op}(..., num_epochs=None)"
    if batch is None:
        return end, f"repeat() behind {called(end)}"
    (records,) = pipeline.inputs_of(batch)
    return batch, f"repeat() behind {called(records)}, before {called(batch)}"


def _is_by_batch(stage: Stage) -> bool:
    """Whether a stage works on each element by itself, whatever comes before it."""
    passing = stage.op in ("map", "prefetch", "with_options", "assert_cardinality")
    return passing and not (flag(stage, "python") or flag(stage, "random"))


def is_endless(pipeline: Pipeline) -> bool:
    """Whether a pipeline delivers without end, as far as is known without running it."""
    return endless_at(pipeline, pipeline.last)


def endless_at(pipeline: Pipeline, stage: Stage) -> bool:
    """The same of a stage."""
    known: dict[str, bool] = {}
    for other in pipeline.stages:  # in the order of the pipeline: inputs come first
        ways = [known[name] for name in other.inputs]
        known[other.name] = flag(other, "endless") or _goes_on(other, ways)
    return known[stage.name]


def _goes_on(stage: Stage, ways: list[bool]) -> bool:
    """Whether a stage delivers without end, by whether what it reads does."""
    if stage.op == "take" and (number(stage, "count") or -1) >= 0:
        return False
    if not stage.inputs:
        return stage.op in ("random", "counter")
    ends_with_one = stage.op in ("zip", "enumerate") or flag(stage, "stop_on_empty_dataset")
    return all(ways) if ends_with_one else any(ways)


def find_missing_prefetch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The next batch is made only when it is asked for, or what was made ahead is worked on after that."""
    tail = _chain_from_end(pipeline)
    last_prefetch = next((stage for stage in tail if _prefetches(stage)), None)
    if last_prefetch is None:
        optimized = all(stage.attributes.get("optimized") is not False for stage in pipeline.stages)
        adding = ", where TensorFlow does not add it by itself" if optimized else ""
        yield finding(
            "prefetch-missing",
            "warning",
            pipeline.last,
            f"nothing is prefetched{adding}: the next batch is made only when the last one has been sent",
            "prefetch(CS_AUTOTUNE) as the last call",
            overlapped(),
        )
        return
    behind = [s for s in tail if s.position > last_prefetch.position and s.op not in _HARMLESS]
    # One call that is changed takes a repeat() beside it along.
    behind = [s for s in behind if s.op != "repeat"] or behind
    for stage in reversed(behind):
        yield finding(
            "prefetch-not-last",
            "warning",
            stage,
            f"it stands behind the prefetch of {last_prefetch.source or 'a library'}: what it does is not "
            "done ahead",
            "prefetch(CS_AUTOTUNE) as the last call",
            overlapped(),
        )


def _prefetches(stage: Stage) -> bool:
    """Whether a stage makes its elements ahead; a call of a library may do so at its end."""
    if stage.op == "prefetch":
        return True
    return stage.kinds[-1:] == ("PrefetchDataset",) and number(stage, "buffer_size") != 0


def find_empty_prefetch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A prefetch of nothing."""
    for stage in pipeline.stages:
        if stage.op == "prefetch" and number(stage, "buffer_size") == 0:
            yield finding(
                "prefetch-empty",
                "warning",
                stage,
                "a buffer of 0 elements prefetches nothing",
                "prefetch(CS_AUTOTUNE)",
                overlapped(),
            )


def _chain_from_end(pipeline: Pipeline) -> list[Stage]:
    """The stages from the last one back, as long as each reads one other."""
    chain = [pipeline.last]
    while len(chain[-1].inputs) == 1:
        chain.append(pipeline.by_name[chain[-1].inputs[0]])
    return chain


NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def find_wide_types(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """64 bits where 32 are computed in; what one call makes of one type is one finding."""
    made: dict[tuple[str, str], list[Tensor]] = {}
    for tensor in pipeline.element:
        if tensor.dtype in NARROW:
            made.setdefault((_maker(pipeline, tensor).name, tensor.dtype), []).append(tensor)
    for (stage, dtype), tensors in made.items():
        narrow = NARROW[dtype]
        yield finding(
            "dtype-wide",
            "info" if "int" in dtype else "warning",
            pipeline.by_name[stage],
            f"{_listed(tensors)} {dtype}, the system computes in 32 bits: twice the memory is made, batched "
            "and copied",
            f"tf.cast(x, tf.{narrow}) as early as possible"
            if pipeline.framework == "tensorflow"
            else f"{narrow} in the dataset",
            _bytes_spared(tensors),
        )


def _listed(tensors: Sequence[Tensor]) -> str:
    """`a is`, `a and b are`, `a, b, c and 2 more are`."""
    names = [tensor.name for tensor in tensors]
    if len(names) == 1:
        return f"{names[0]} is"
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
    return f"{', '.join(names[:-1])} and {names[-1]} are"


_NAMED = 6
"""So many components are named at most."""


def _maker(pipeline: Pipeline, tensor: Tensor) -> Stage:
    """The stage from which on a tensor has its type, as far as there is one way to it; else the last one."""
    index = pipeline.element.index(tensor)
    stage = pipeline.last
    while len(stage.inputs) == 1:
        before = pipeline.by_name[stage.inputs[0]]
        types = before.attributes.get("types")
        # With other components nobody can tell which of them becomes this one.
        if (
            not isinstance(types, tuple)
            or len(types) != len(pipeline.element)
            or types[index] != tensor.dtype
        ):
            break
        stage = before
    return stage


def _bytes_spared(tensors: Sequence[Tensor]) -> Gain:
    """Half of the bytes of tensors of one type, as numbers where their sizes are known."""
    if any(tensor.shape is None or None in tensor.shape for tensor in tensors):
        return Gain("expected", "half of its bytes" if len(tensors) == 1 else "half of their bytes")
    wide = int("".join(filter(str.isdigit, tensors[0].dtype))) // 8
    count = sum(prod(size for size in tensor.shape or () if size is not None) for tensor in tensors)
    return Gain("expected", f"{count * wide:,} bytes a batch become {count * wide // 2:,}")
