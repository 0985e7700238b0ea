"""How a pipeline ends: it repeats, and prefetches what it delivers."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.context import Context, called, finding, flag, number
from input_analyzer.findings.expected_gains import not_speed, overlapped
from input_analyzer.pipeline import Pipeline, Stage

ENDLESS = 1 << 40
"""A count of elements that no training reaches."""
_ALL_STEPS = "the training makes all steps that it was asked for"
_HARMLESS = frozenset({"prefetch", "with_options", "options", "take", "skip"})


def repeat(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The data end before the training does."""
    if not context.training or is_endless(pipeline):
        return
    generated = endless_at(pipeline, pipeline.last, generated=True)
    if_it_ends = "where the generator comes to an end, " if generated else ""
    unless = ", unless the generator goes on without end" if generated else ""
    repeats = [
        stage
        for stage in _of_records(pipeline)
        if stage.op == "repeat" and (number(stage, "count") or -1) >= 0
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
        stage, recommended = _repeat_place(pipeline, context)
        yield finding(
            "repeat-missing",
            "warning",
            stage,
            f"{if_it_ends}the data end after one epoch, and with them the training, whatever number of steps "
            "it was asked for",
            f"{recommended}{unless}, and the number of steps to train()",
            not_speed(_ALL_STEPS),
        )


def _repeat_place(pipeline: Pipeline, context: Context) -> tuple[Stage, str]:
    """The stage at which to write it, and what; the mend in the graph has the same place."""
    places = context.places
    if places is None:
        return pipeline.last, "repeat() before batch(), behind all that chooses or mixes records"
    if places.batch is not None and places.batch is places.repeat:
        # A call of a library that batches has an argument for what it does before.
        return places.batch, f"{places.batch.op}(..., num_epochs=None)"
    behind = f"repeat() behind {called(places.repeat)}"
    if places.batch is None:
        return places.repeat, behind
    return places.batch, f"{behind}, before {called(places.batch)}"


def is_endless(pipeline: Pipeline) -> bool:
    """Whether a pipeline delivers without end, as far as is known without running it."""
    return endless_at(pipeline, pipeline.last)


def endless_at(pipeline: Pipeline, stage: Stage, *, generated: bool = False) -> bool:
    """The same of a stage.

    Args:
        pipeline: All stages.
        stage: One of them.
        generated: What a Python generator makes counts as endless, of which nobody knows.
    """
    known: dict[str, bool] = {}
    for other in pipeline.stages:  # in the order of the pipeline: inputs come first
        own = flag(other, "endless") or (generated and flag(other, "generated"))
        known[other.name] = own or _goes_on(other, [known[name] for name in other.inputs])
    return known[stage.name]


def _goes_on(stage: Stage, ways: list[bool]) -> bool:
    """Whether a stage delivers without end, by whether what it reads does."""
    if stage.op == "take" and (number(stage, "count") or -1) >= 0:
        return False
    if not stage.inputs:
        return stage.op in ("random", "counter")
    if stage.op == _CHOOSE:
        # It ends with its choices, and where all of its datasets have ended.
        choice, *ways = ways
        return choice and (all(ways) if flag(stage, "stop_on_empty_dataset") else any(ways))
    ends_with_one = stage.op in ("zip", "enumerate") or flag(stage, "stop_on_empty_dataset")
    return all(ways) if ends_with_one else any(ways)


def _of_records(pipeline: Pipeline) -> list[Stage]:
    """The stages in pipeline order, without those that make nothing but the choices among datasets."""
    found: set[str] = set()
    waiting = [pipeline.last]
    while waiting:
        stage = waiting.pop()
        if stage.name not in found:
            found.add(stage.name)
            waiting += list(pipeline.inputs_of(stage))[1 if stage.op == _CHOOSE else 0 :]
    return [stage for stage in pipeline.stages if stage.name in found]


_CHOOSE = "choose_from_datasets"
"""Its first input says which of the others delivers next."""


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
    # One call that is mended takes a repeat() beside it along.
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
