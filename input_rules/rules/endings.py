"""How a pipeline ends: it repeats, and prefetches what it delivers."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.context import Context, called, finding, flag, makes_records, number
from input_rules.rules.expected_gains import not_speed, overlapped

ENDLESS = 1 << 40
"""A count of elements that no training reaches."""
_ALL_STEPS = "the training makes all steps that it was asked for"
_HARMLESS = frozenset({"prefetch", "with_options", "options", "take", "skip"})


def repeat(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def prefetch(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def prefetch_fixed(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


RULES = (repeat, prefetch, prefetch_fixed)
