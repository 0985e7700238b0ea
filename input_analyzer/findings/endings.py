"""How a pipeline ends: it repeats, and prefetches what it delivers."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.context import Context, called, finding, flag, number
from input_analyzer.findings.gains import not_speed, overlapped
from input_analyzer.pipeline import Pipeline, Stage

ENDLESS = 1 << 40
"""A count of elements that no training reaches."""
_ALL_STEPS = "the training makes all steps that it was asked for"
_HARMLESS = frozenset({"prefetch", "with_options", "options", "take", "skip"})


def repeat(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The data end before the training does."""
    if not context.training or is_endless(pipeline):
        return
    repeats = [
        stage for stage in pipeline.stages if stage.op == "repeat" and (number(stage, "count") or -1) >= 0
    ]
    if repeats:
        yield finding(
            "repeat-finite",
            "warning",
            repeats[-1],
            f"the data are repeated {number(repeats[-1], 'count')} times, then the training ends, whatever "
            "number of steps it was asked for",
            "repeat() without a count, and the number of steps to train()",
            not_speed(_ALL_STEPS),
        )
    else:
        stage, recommended = _repeat_place(pipeline, context)
        yield finding(
            "repeat-missing",
            "warning",
            stage,
            "the data end after one epoch, and with them the training, whatever number of steps it was asked "
            "for",
            f"{recommended}, and the number of steps to train()",
            not_speed(_ALL_STEPS),
        )


def _repeat_place(pipeline: Pipeline, context: Context) -> tuple[Stage, str]:
    """The stage at which to write it, and what; the mend in the graph has the same place."""
    library = next((stage for stage in pipeline.stages if stage.op == "make_csv_dataset"), None)
    if library is not None and len(library.inputs) == 0 and _ends_an_epoch(pipeline, library):
        return library, "make_csv_dataset(..., num_epochs=None)"
    places = context.places
    if places is None:
        return pipeline.last, "repeat() before batch(), behind all that chooses or mixes records"
    behind = f"repeat() behind {called(places.repeat)}"
    if places.batch is None:
        return places.repeat, behind
    return places.batch, f"{behind}, before {called(places.batch)}"


def _ends_an_epoch(pipeline: Pipeline, stage: Stage) -> bool:
    """Whether what stands behind a stage may as well read it without end: it takes no part, keeps nothing."""
    return all(later.op in _GOING_ON and len(later.inputs) < 2 for later in pipeline.after(stage))


_GOING_ON = frozenset({"map", "filter", "unbatch", "batch", "shuffle", "prefetch", "with_options"})


def is_endless(pipeline: Pipeline) -> bool:
    """Whether a pipeline delivers without end, as far as is known without running it."""
    return endless_at(pipeline, pipeline.last)


def endless_at(pipeline: Pipeline, stage: Stage) -> bool:
    """The same of a stage."""
    if flag(stage, "endless"):
        return True
    if stage.op == "take" and (number(stage, "count") or -1) >= 0:
        return False
    if not stage.inputs:
        return stage.op in ("random", "counter")
    ways = [endless_at(pipeline, other) for other in pipeline.inputs_of(stage)]
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
