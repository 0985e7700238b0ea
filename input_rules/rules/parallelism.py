"""Rules about parallel work: calls, reads of files, and Python code."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage
from input_rules.rules.base import (
    AUTOTUNE_NAME,
    FILES_AT_ONCE,
    READERS,
    Context,
    argument,
    choosing_behind,
    files_at_once,
    finding,
    flag,
    most_cpus_for,
    number,
    side_by_side,
    spared,
)
from input_rules.rules.batching import MUCH
from input_rules.throughput import assign_lanes, is_parallel

_CALLING = ("map", "interleave")


def find_sequential_calls(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """`num_parallel_calls` is left out, or fixed."""
    for stage in pipeline.stages:
        python = flag(stage, "python")
        if stage.op not in _CALLING or flag(stage, "free") or (python and stage.op != "map"):
            continue
        share = context.share((stage,))
        if share is not None and share < MUCH:
            continue
        calls = number(stage, "num_parallel_calls")
        gain = side_by_side(pipeline, context, stage)
        if python and context.times and not (gain and (gain.times or 0.0) > 1 + MUCH):
            continue  # it computes, which Python does one call at a time
        if calls is None and not is_parallel(stage):
            by_itself = assign_lanes(pipeline)[stage.name].threads_per_cpu > 0
            yield finding(
                "parallel-calls-missing",
                "info" if by_itself or (python and not context.times) else "warning",
                stage,
                _one_by_one(context, stage, by_itself),
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                gain,
                by_hand=_by_hand(pipeline, stage),
            )
        elif calls is not None and calls != AUTOTUNE:
            yield finding(
                "parallel-calls-fixed",
                "info",
                stage,
                f"{calls} calls run at once, whatever number of CPUs the worker gets",
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                gain,
                by_hand=_by_hand(pipeline, stage),
            )


def _by_hand(pipeline: Pipeline, stage: Stage) -> str | None:
    """Why only the author can tell that several calls at once give the same records."""
    if flag(stage, "python"):
        return "it calls Python, which may do something else in another order of calls"
    if flag(stage, "random"):
        return "it draws random numbers out of a state, which its calls would share"
    return choosing_behind(pipeline, stage) if stage.op == "interleave" else None


def _one_by_one(context: Context, stage: Stage, by_itself: bool) -> str:
    """What is wrong with a call that does not say how many run at once."""
    if by_itself:
        return (
            "it does not say how many calls may run at once: TensorFlow makes that as many as there are CPUs "
            "only while its optimizations are on and the function keeps no state"
        )
    if flag(stage, "python"):
        waits = "each mostly waits" if context.times else "what waits in them, for a file say, does so alone"
        return f"its calls of Python run one after the other, and {waits}: several can wait at once"
    return "its calls run one after the other, on one CPU, however many the worker has"


def find_fixed_cycle_length(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """An interleave over a fixed number of files, though it could be tuned."""
    for stage in pipeline.stages:
        length = number(stage, "cycle_length")
        if stage.op != "interleave" or length is None or length == AUTOTUNE:
            continue
        if number(stage, "num_parallel_calls") is None:
            continue
        # With few CPUs CS_AUTOTUNE reads one file at a time, which is worse than a number.
        wanted = AUTOTUNE if length >= FILES_AT_ONCE else files_at_once(context.cpus)
        if wanted == AUTOTUNE and context.cpus is not None and context.cpus <= most_cpus_for(length):
            continue
        many = f", where a worker has more than {most_cpus_for(length)} CPUs" if wanted == AUTOTUNE else ""
        yield finding(
            "cycle-length-fixed",
            "info",
            stage,
            f"it reads {_counted(length, stage)} at once, whatever number of CPUs the worker gets",
            f"interleave(..., cycle_length={argument(wanted)}, num_parallel_calls=CS_AUTOTUNE){many}",
            side_by_side(pipeline, context, stage, wanted),
            None if wanted == AUTOTUNE else wanted,
            choosing_behind(pipeline, stage),
        )


def _counted(number: int, stage: Stage) -> str:
    """What a stage takes turns between: files, or what else its function makes of an element."""
    what = "file" if stage.attributes.get("reads") else "dataset"
    return f"{number} {what}{'' if number == 1 else 's'}"


def find_flat_map_of_files(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Files one after the other, as the author wrote it."""
    for stage in pipeline.stages:
        if stage.op == "flat_map" and stage.attributes.get("reads"):
            wanted = files_at_once(context.cpus)
            yield finding(
                "flat-map-of-files",
                "warning",
                stage,
                "it reads one file after the other, each to its end, so nothing overlaps with the wait for "
                "the file system",
                f"interleave(..., cycle_length={argument(wanted)}, num_parallel_calls=CS_AUTOTUNE)",
                side_by_side(pipeline, context, stage),
                None if wanted == AUTOTUNE else wanted,
                choosing_behind(pipeline, stage),
            )


def find_sequential_reader(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A reader of several files reads one at a time; an evaluation needs them in their order."""
    if not context.training:
        return
    for stage in pipeline.stages:
        files = _files(pipeline, stage)
        one_by_one = "FlatMapDataset" in stage.kinds
        if stage.op in READERS and one_by_one and files != 1 and (files or stage.inputs):
            wanted = files_at_once(context.cpus)
            yield finding(
                "parallel-reads-missing",
                "info",
                stage,
                f"it reads its {f'{files} files' if files else 'files'} one after the other",
                f"{stage.op}(..., num_parallel_reads={argument(wanted)})",
                side_by_side(pipeline, context, stage),
                None if wanted == AUTOTUNE else wanted,
                choosing_behind(pipeline, stage),
            )


def _files(pipeline: Pipeline, stage: Stage) -> int | None:
    """How many files a reader has: by its own list of names, or by a dataset of them that it is given."""
    counts = (number(one, "files") for one in (stage, *pipeline.before(stage)))
    return next((count for count in counts if count is not None), None)


_INSTEAD = "operations of TensorFlow instead, or the work done once when the data are prepared"
_LOCK_FREE = "files, a network, decoders and NumPy that give the lock up"
"""What calls of Python can do side by side."""


def find_python_code(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """`py_function`, `numpy_function` and generators."""
    for stage in pipeline.stages:
        if not flag(stage, "python"):
            continue
        gain = spared(pipeline, context, (stage,))
        if stage.op == "from_generator":
            yield finding(
                "python-generator",
                "warning",
                stage,
                "a Python generator makes the records: one at a time, and num_parallel_calls does not help",
                "from_tensor_slices of arrays, or TFRecord files that are written once",
                gain,
            )
        else:
            yield finding("python-function", "warning", stage, *_function(context, stage), gain)


def _function(context: Context, stage: Stage) -> tuple[str, str]:
    """What is to be said of a function of Python, and what is recommended, by where its time goes."""
    it_calls = "it calls Python (py_function or numpy_function)"
    time = context.times.get(stage.name)
    waits = time is not None and time.wait_us > time.cpu_us
    if not waits:
        said = (
            f"{it_calls}, which computes one call at a time, as it holds a lock; only what waits without it "
            f"({_LOCK_FREE}) is done side by side by several calls"
        )
        return said, _INSTEAD
    said = (
        f"{it_calls}, and mostly waits there: calls wait side by side, but each holds Python's one lock "
        "while it computes"
    )
    if is_parallel(stage) or number(stage, "num_parallel_calls") is not None:
        return said, _INSTEAD
    return said, f"{stage.op}(..., num_parallel_calls={AUTOTUNE_NAME}) for what waits; {_INSTEAD}"
