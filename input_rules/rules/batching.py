"""Rules about batches: sizes and types, maps that could take whole batches, repeat, and prefetch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from input_rules.findings import Finding, Gain
from input_rules.pipeline import Pipeline, Stage, Tensor
from input_rules.rules.base import (
    Context,
    describe_call,
    flag,
    is_batched,
    make_finding,
    makes_records,
    non_speed_gain,
    number,
    overlap_gain,
    time_saving_gain,
)

# The form of a finding whose change may only be proposed after it was tried.
UNTRIED = "untried"

# Fraction of the measured time from which a change is worthwhile.
WORTHWHILE_SHARE = 0.05

_ONE_SHAPE = "the CS system is programmed for one fixed shape"

# Calls with an argument that drops a smaller last batch, and the name of the argument.
DROP_ARGUMENTS = {
    **dict.fromkeys(
        ("batch", "padded_batch", "ragged_batch", "rebatch", "map_and_batch", "dense_to_ragged_batch"),
        "drop_remainder",
    ),
    "make_batched_features_dataset": "drop_final_batch",
}

# Calls of tf.keras.utils that deliver records if batch_size is None.
_UNBATCHED = frozenset(
    {
        *("image_dataset_from_directory", "text_dataset_from_directory", "audio_dataset_from_directory"),
        "timeseries_dataset_from_array",
    }
)


def find_smaller_batches(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find batches whose last one in an epoch may be smaller."""
    for stage in pipeline.stages:
        if not flag(stage, "smaller_batch"):
            continue
        dropped = "; at most the last incomplete batch of an epoch is dropped"
        what = "the last batch may be smaller"
        if makes_records(stage):
            what = "it makes records, and the last one may be smaller"
        if len(stage.inputs) == 1 and is_endless_at(pipeline, pipeline.by_name[stage.inputs[0]]):
            what = "no batch is smaller, as the data never end, but the call does not state that"
            dropped = ""
        yield make_finding(
            "drop-remainder-missing",
            "error",
            stage,
            f"{what}, so the batch size is unknown, and {_ONE_SHAPE}",
            _describe_full_batches(pipeline, context, stage),
            non_speed_gain(f"the program can be compiled{dropped}"),
        )


def _describe_full_batches(pipeline: Pipeline, context: Context, stage: Stage) -> str:
    """Describe the change with which a call delivers batches of the same size."""
    if stage.op in DROP_ARGUMENTS:
        return f"{stage.op}(..., {DROP_ARGUMENTS[stage.op]}=True)"
    batch = f"batch({number(stage, 'batch_size') or 'N'}, drop_remainder=True)"
    if stage.op in _UNBATCHED:
        return f"{stage.op}(..., batch_size=None), followed by {batch}"
    if stage.op == "make_csv_dataset" and context.training:
        return f"{stage.op}(..., num_epochs=None), whose batches continue across epochs"
    return f"unbatch().{batch} after {stage.op}(), or its argument that drops the last batch"


def find_unknown_sizes(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find sizes that are unknown for another reason than a smaller last batch."""
    unknown = [tensor for tensor in pipeline.element if tensor.shape is None or None in tensor.shape]
    if not unknown:
        return

    def format_shape(tensor: Tensor) -> str:
        if tensor.shape is None:
            return "of any shape"
        return f"[{', '.join('?' if size is None else str(size) for size in tensor.shape)}]"

    causes = [stage for stage in pipeline.stages if flag(stage, "unknown_size")]
    explained = causes or any(flag(stage, "smaller_batch") for stage in pipeline.stages)
    # Special tensors (ragged, sparse) do not show their sizes before the last stage.
    for stage in causes if explained else [pipeline.last]:
        named = ", ".join(f"{tensor.name} {format_shape(tensor)}" for tensor in unknown)
        yield make_finding(
            "shape-unknown",
            "error",
            stage,
            f"its elements have sizes that are unknown before the run, and {_ONE_SHAPE}; a batch has {named}",
            _describe_fixed_sizes(stage),
            non_speed_gain("the program can be compiled"),
        )


def _describe_fixed_sizes(stage: Stage) -> str:
    """Describe the change with which the sizes after a stage are known."""
    if stage.op == "from_generator":
        return "from_generator(..., output_signature=...) with every size a number"
    if stage.op == "padded_batch":
        return "padded_batch(..., padded_shapes=...) with every size a number"
    if stage.op in ("concatenate", "sample_from_datasets", "choose_from_datasets"):
        return "batches of one size from all of its datasets"
    if stage.op in ("interleave", "flat_map"):
        return "every size a number in its function, for example with batch(..., drop_remainder=True)"
    if stage.op == "bucket_by_sequence_length":  # batches of one bucket differ from those of another
        return "padded_batch(N, padded_shapes=..., drop_remainder=True), one size for all records"
    if stage.op == "map":
        return "tf.ensure_shape(x, [...]) with every size a number on what its function returns"
    return f"map() with tf.ensure_shape(x, [...]), every size a number, after {stage.op}()"


def find_map_before_batch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find functions that are called for each record but could work on whole batches."""
    for batch in pipeline.stages:
        # A batch that is batched again is a record; earlier calls are for parts of records.
        if batch.op not in ("batch", _MAP_AND_BATCH) or not is_batched(batch):
            continue
        maps = _maps_of_records(pipeline, batch, python=context.tries_changes)
        share = context.share(maps)
        if not maps or (share is not None and share < WORTHWHILE_SHARE):
            continue
        first = maps[0]
        named = [str(one.attributes["function"]) for one in maps if _has_name(one)]
        subject = f"{' and '.join(map(repr, named))} {'is' if len(named) == 1 else 'are'}"
        if not named:
            subject = "its function is" if len(maps) == 1 else f"{len(maps)} functions are"
        records = number(batch, "batch_size") or 1 if maps[-1] is batch else 1
        large = (number(maps[-1], "element_bytes") or 0) > _LARGE_RECORD_BYTES * records
        if large and not context.tries_changes:
            continue
        yield make_finding(
            "map-before-batch",
            "info" if large else "warning",
            first,
            f"{subject} called for every record, though nothing in {'it' if len(maps) == 1 else 'them'} "
            "needs single records: apart from the computation itself, a call for a batch costs little more "
            "than one for a record",
            _describe_batch_form(maps),
            time_saving_gain(pipeline, context, maps),
            related=tuple(one.source for one in (*maps, batch) if one.source and one is not first),
            form=UNTRIED if any(flag(one, "python") for one in maps) else None,
        )


# A call costs some 20 us. From records of this size on, a batch no longer fits into the caches between its
# operations, which costs as much. Measured with batches of 128 float32 images that are parsed, decoded and
# scaled: 9 times the rate for 3 KB, 2.9 times for 48 KB, 1.4 times for 192 KB, 0.4 to 1.1 times for 588 KB.
_LARGE_RECORD_BYTES = 1 << 18


def _has_name(stage: Stage) -> bool:
    return stage.attributes.get("function") not in (None, "lambda")


def _describe_batch_form(maps: Sequence[Stage]) -> str:
    parses = any(flag(one, "parses_single") for one in maps)
    whole = "a function that takes whole batches"
    return f"batch(...) first, then map() with {'tf.io.parse_example in ' if parses else ''}{whole}"


def _maps_of_records(pipeline: Pipeline, batch: Stage, *, python: bool) -> tuple[Stage, ...]:
    """Return the maps before a batch that can take whole batches together, in pipeline order.

    Between them and the batch is nothing but what passes records on.
    """
    if batch.op == _MAP_AND_BATCH:
        return (batch,) if _has_batch_form(pipeline, batch, python=python) else ()
    found: list[Stage] = []
    stage = batch
    while len(stage.inputs) == 1:
        (stage,) = pipeline.inputs_of(stage)
        if stage.op == "map" and _has_batch_form(pipeline, stage, python=python):
            found.append(stage)
        elif stage.op not in _PASSING_RECORDS:
            break
    # Those that compute nothing are no reason for a change.
    while found and flag(found[-1], "free"):
        found.pop()
    return tuple(reversed(found))


_MAP_AND_BATCH = "map_and_batch"  # the function of `tf.data.experimental`
_PASSING_RECORDS = frozenset({"shuffle", "repeat", "prefetch"})


def _has_batch_form(pipeline: Pipeline, stage: Stage, *, python: bool) -> bool:
    if not flag(stage, "batch_form") or flag(stage, "random") or (flag(stage, "python") and not python):
        return False
    before = pipeline.inputs_of(stage)
    return all(flag(one, "known_shape") for one in (*before, stage))


# A count of elements that no training run reaches.
ENDLESS = 1 << 40
_ALL_STEPS_RUN = "training runs all steps that were requested"
_HARMLESS = frozenset({"prefetch", "with_options", "options", "take", "skip"})


def find_missing_repeat(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find data that end before training does."""
    if not context.training or is_endless(pipeline):
        return
    generated = any(flag(stage, "python") for stage in pipeline.stages if not stage.inputs)
    if_it_ends = "if the generator ends, " if generated else ""
    unless = ", unless the generator never ends" if generated else ""
    repeats = [
        stage for stage in pipeline.stages if stage.op == "repeat" and (number(stage, "count") or -1) >= 0
    ]
    if repeats:
        yield make_finding(
            "repeat-finite",
            "warning",
            repeats[-1],
            f"{if_it_ends}the data are repeated {number(repeats[-1], 'count')} times, then training ends, "
            "whatever number of steps was requested",
            f"repeat() without a count{unless}, and the number of steps as an argument of train()",
            non_speed_gain(_ALL_STEPS_RUN),
        )
    else:
        stage, recommended = _repeat_place(pipeline)
        yield make_finding(
            "repeat-missing",
            "warning",
            stage,
            f"{if_it_ends}the data end after one epoch, and training with them, whatever number of steps was "
            "requested",
            f"{recommended}{unless}, and the number of steps as an argument of train()",
            non_speed_gain(_ALL_STEPS_RUN),
        )


def _repeat_place(pipeline: Pipeline) -> tuple[Stage, str]:
    """Return the stage at which to write repeat(), and the text to recommend."""
    # If each batch is processed by itself afterwards, that is before the batches, so that epochs share a
    # batch; otherwise at the end, but before a prefetch.
    stage = end = pipeline.last
    batch: Stage | None = None
    while len(stage.inputs) == 1 and not makes_records(stage):
        if stage.op in ("batch", "padded_batch"):
            batch = stage
        elif (
            stage.op not in ("map", "prefetch", "with_options", "assert_cardinality")
            or flag(stage, "python")
            or flag(stage, "random")
        ):  # it may process several elements together
            break
        if stage is end and stage.op in ("prefetch", "with_options"):
            (end,) = pipeline.inputs_of(stage)
        (stage,) = pipeline.inputs_of(stage)
    if stage.op == "make_csv_dataset":  # batches, and has an argument for repeating before that
        return stage, f"{stage.op}(..., num_epochs=None)"
    if batch is None:
        return end, f"repeat() after {describe_call(end)}"
    (records,) = pipeline.inputs_of(batch)
    return batch, f"repeat() after {describe_call(records)}, before {describe_call(batch)}"


def is_endless(pipeline: Pipeline) -> bool:
    """Return True if a pipeline never ends, as far as is known without running it."""
    return is_endless_at(pipeline, pipeline.last)


def is_endless_at(pipeline: Pipeline, stage: Stage) -> bool:
    """Return True if a stage never ends, as far as is known without running it."""
    known: dict[str, bool] = {}
    for other in pipeline.stages:  # in the order of the pipeline: inputs come first
        endless_inputs = [known[name] for name in other.inputs]
        if flag(other, "endless"):
            endless = True
        elif other.op == "take" and (number(other, "count") or -1) >= 0:
            endless = False
        elif not other.inputs:
            endless = other.op in ("random", "counter")
        elif other.op in ("zip", "enumerate") or flag(other, "stop_on_empty_dataset"):
            endless = all(endless_inputs)
        else:
            endless = any(endless_inputs)
        known[other.name] = endless
    return known[stage.name]


def find_missing_prefetch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find batches that are made only on demand, and work that follows the last prefetch."""
    tail = [pipeline.last]  # the last stages, backwards, as long as each has a single input
    while len(tail[-1].inputs) == 1:
        tail.append(pipeline.by_name[tail[-1].inputs[0]])
    last_prefetch = next(
        (
            stage
            for stage in tail
            if stage.op == "prefetch"
            # A call of a library may prefetch at its end.
            or (stage.kinds[-1:] == ("PrefetchDataset",) and number(stage, "buffer_size") != 0)
        ),
        None,
    )
    if last_prefetch is None:
        optimized = all(stage.attributes.get("optimized") is not False for stage in pipeline.stages)
        adding = ", if TensorFlow does not add it by itself" if optimized else ""
        yield make_finding(
            "prefetch-missing",
            "warning",
            pipeline.last,
            f"nothing is prefetched{adding}: the next batch is made only after the last one was sent",
            "prefetch(CS_AUTOTUNE) as the last call",
            overlap_gain(),
        )
        return
    later = [s for s in tail if s.position > last_prefetch.position and s.op not in _HARMLESS]
    # Changing another call moves a repeat() as well.
    later = [s for s in later if s.op != "repeat"] or later
    for stage in reversed(later):
        yield make_finding(
            "prefetch-not-last",
            "warning",
            stage,
            f"it follows the prefetch of {last_prefetch.source or 'a library'}, so its work is not done "
            "ahead",
            "prefetch(CS_AUTOTUNE) as the last call",
            overlap_gain(),
        )


def find_empty_prefetch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find prefetch buffers of size 0."""
    for stage in pipeline.stages:
        if stage.op == "prefetch" and number(stage, "buffer_size") == 0:
            yield make_finding(
                "prefetch-empty",
                "warning",
                stage,
                "a buffer of 0 elements prefetches nothing",
                "prefetch(CS_AUTOTUNE)",
                overlap_gain(),
            )


NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def find_wide_types(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find 64-bit tensors, as 32 bits are computed in; one finding for each call and type."""
    made: dict[tuple[str, str], list[Tensor]] = {}
    for tensor in pipeline.element:
        if tensor.dtype in NARROW:
            made.setdefault((_stage_of_type(pipeline, tensor).name, tensor.dtype), []).append(tensor)
    for (stage, dtype), tensors in made.items():
        narrow = NARROW[dtype]
        if any(tensor.shape is None or None in tensor.shape for tensor in tensors):
            gain = "half of its bytes" if len(tensors) == 1 else "half of their bytes"
        else:
            wide = int("".join(filter(str.isdigit, dtype))) // 8
            count = sum(prod(size for size in tensor.shape or () if size is not None) for tensor in tensors)
            gain = f"{count * wide:,} bytes a batch become {count * wide // 2:,}"
        yield make_finding(
            "dtype-wide",
            "info" if "int" in dtype else "warning",
            pipeline.by_name[stage],
            f"{_list_tensors(tensors)} {dtype}, the system computes in 32 bits: twice the bytes are made, "
            "batched and copied",
            f"tf.cast(x, tf.{narrow}) as early as possible"
            if pipeline.framework == "tensorflow"
            else f"{narrow} in the dataset",
            Gain("expected", gain),
        )


def _list_tensors(tensors: Sequence[Tensor]) -> str:
    """List tensors with a verb: `a is`, `a and b are`, `a, b, c and 2 more are`."""
    names = [tensor.name for tensor in tensors]
    if len(names) == 1:
        return f"{names[0]} is"
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"]
    return f"{', '.join(names[:-1])} and {names[-1]} are"


_MOST_NAMED = 6


def _stage_of_type(pipeline: Pipeline, tensor: Tensor) -> Stage:
    """Return the stage at which a tensor gets its type; the last stage if there are several paths."""
    index = pipeline.element.index(tensor)
    stage = pipeline.last
    while len(stage.inputs) == 1:
        before = pipeline.by_name[stage.inputs[0]]
        types = before.attributes.get("types")
        # With other components it is unknown which of them becomes this tensor.
        if (
            not isinstance(types, tuple)
            or len(types) != len(pipeline.element)
            or types[index] != tensor.dtype
        ):
            break
        stage = before
    return stage
