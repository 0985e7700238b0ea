"""Rules about parallel work: calls, reads of files, and Python code."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.formatting import plural
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage
from input_rules.rules.base import (
    AUTOTUNE_NAME,
    FILES_AT_ONCE,
    READERS,
    Context,
    files_at_once,
    flag,
    format_argument,
    make_finding,
    most_cpus_for,
    number,
    order_dependence,
    parallel_gain,
    time_saving_gain,
)
from input_rules.rules.batching import WORTHWHILE_SHARE
from input_rules.throughput import assign_lanes, is_parallel

_CALLING = ("map", "interleave")


def find_sequential_calls(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find calls without `num_parallel_calls`, or with a fixed number."""
    for stage in pipeline.stages:
        python = flag(stage, "python")
        if stage.op not in _CALLING or flag(stage, "free") or (python and stage.op != "map"):
            continue
        share = context.share((stage,))
        if share is not None and share < WORTHWHILE_SHARE:
            continue
        calls = number(stage, "num_parallel_calls")
        gain = parallel_gain(pipeline, context, stage)
        if python and context.times and not (gain and (gain.times or 0.0) > 1 + WORTHWHILE_SHARE):
            continue  # it computes, and Python runs one call at a time
        if calls is None and not is_parallel(stage):
            by_itself = assign_lanes(pipeline)[stage.name].threads_per_cpu > 0
            yield make_finding(
                "parallel-calls-missing",
                "info" if by_itself or (python and not context.times) else "warning",
                stage,
                _describe_sequential_calls(context, stage, by_itself),
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                gain,
                by_hand=_reason_against_parallel_calls(pipeline, stage),
            )
        elif calls is not None and calls != AUTOTUNE:
            yield make_finding(
                "parallel-calls-fixed",
                "info",
                stage,
                f"{calls} calls run in parallel, whatever number of CPUs the worker has",
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                gain,
                by_hand=_reason_against_parallel_calls(pipeline, stage),
            )


def _reason_against_parallel_calls(pipeline: Pipeline, stage: Stage) -> str | None:
    """Return why only the author can know that parallel calls give the same records, if that is so."""
    if flag(stage, "python"):
        return "it calls Python, whose results may depend on the order of calls"
    if flag(stage, "random"):
        return "it draws random numbers from a state, which parallel calls would share"
    return order_dependence(pipeline, stage) if stage.op == "interleave" else None


def _describe_sequential_calls(context: Context, stage: Stage, by_itself: bool) -> str:
    """Describe the problem of a call without `num_parallel_calls`."""
    if by_itself:
        return (
            "it does not state how many calls may run in parallel: TensorFlow runs one for each CPU only "
            "while its optimizations are on and the function is stateless"
        )
    if flag(stage, "python"):
        waits = (
            "each mostly waits" if context.times else "each wait, such as for a file, holds up the next call"
        )
        return f"its Python calls run in sequence, and {waits}: several can wait at the same time"
    return "its calls run in sequence on one CPU, however many the worker has"


def find_fixed_cycle_length(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find an interleave over a fixed number of files that could be tuned."""
    for stage in pipeline.stages:
        length = number(stage, "cycle_length")
        if stage.op != "interleave" or length is None or length == AUTOTUNE:
            continue
        if number(stage, "num_parallel_calls") is None:
            continue
        # With few CPUs, CS_AUTOTUNE reads one file at a time, which is slower than a fixed number.
        wanted = AUTOTUNE if length >= FILES_AT_ONCE else files_at_once(context.cpus)
        if wanted == AUTOTUNE and context.cpus is not None and context.cpus <= most_cpus_for(length):
            continue
        many = f", if a worker has more than {most_cpus_for(length)} CPUs" if wanted == AUTOTUNE else ""
        inputs = plural(length, "file" if stage.attributes.get("reads") else "dataset")
        yield make_finding(
            "cycle-length-fixed",
            "info",
            stage,
            f"it reads {inputs} at once, whatever number of CPUs the worker has",
            f"interleave(..., cycle_length={format_argument(wanted)}, num_parallel_calls=CS_AUTOTUNE){many}",
            parallel_gain(pipeline, context, stage, wanted),
            None if wanted == AUTOTUNE else wanted,
            order_dependence(pipeline, stage),
        )


def find_flat_map_of_files(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find files that are read in sequence, as their author wrote it."""
    for stage in pipeline.stages:
        if stage.op == "flat_map" and stage.attributes.get("reads"):
            wanted = files_at_once(context.cpus)
            yield make_finding(
                "flat-map-of-files",
                "warning",
                stage,
                "it reads files in sequence, each to its end, so nothing overlaps with the wait for the file "
                "system",
                f"interleave(..., cycle_length={format_argument(wanted)}, num_parallel_calls=CS_AUTOTUNE)",
                parallel_gain(pipeline, context, stage),
                None if wanted == AUTOTUNE else wanted,
                order_dependence(pipeline, stage),
            )


def find_sequential_reader(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find readers of several files that read them in sequence; evaluations need that order."""
    if not context.training:
        return
    for stage in pipeline.stages:
        # Names of files are given as a list or as a dataset.
        counts = (number(one, "files") for one in (stage, *pipeline.before(stage)))
        files = next((count for count in counts if count is not None), None)
        one_by_one = "FlatMapDataset" in stage.kinds
        if stage.op in READERS and one_by_one and files != 1 and (files or stage.inputs):
            wanted = files_at_once(context.cpus)
            yield make_finding(
                "parallel-reads-missing",
                "info",
                stage,
                f"it reads its {f'{files} files' if files else 'files'} in sequence",
                f"{stage.op}(..., num_parallel_reads={format_argument(wanted)})",
                parallel_gain(pipeline, context, stage),
                None if wanted == AUTOTUNE else wanted,
                order_dependence(pipeline, stage),
            )


_INSTEAD = "TensorFlow operations instead, or the same work once when the data are prepared"
# Python calls that run in parallel.
_LOCK_FREE = "files, network, decoders and NumPy functions that release the lock"


def find_python_code(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find `py_function`, `numpy_function` and generators."""
    for stage in pipeline.stages:
        if not flag(stage, "python"):
            continue
        gain = time_saving_gain(pipeline, context, (stage,))
        if stage.op == "from_generator":
            yield make_finding(
                "python-generator",
                "warning",
                stage,
                "a Python generator makes the records: one at a time, and num_parallel_calls does not help",
                "from_tensor_slices of arrays, or TFRecord files that you write once",
                gain,
            )
        else:
            yield make_finding(
                "python-function", "warning", stage, *_describe_python_function(context, stage), gain
            )


def _describe_python_function(context: Context, stage: Stage) -> tuple[str, str]:
    """Describe a Python function by where its time goes; return the message and the recommendation."""
    it_calls = "it calls Python (py_function or numpy_function)"
    time = context.times.get(stage.name)
    waits = time is not None and time.wait_us > time.cpu_us
    if not waits:
        said = (
            f"{it_calls}, which computes one call at a time, as it holds a lock; only work without the lock "
            f"({_LOCK_FREE}) runs in parallel"
        )
        return said, _INSTEAD
    said = (
        f"{it_calls}, and mostly waits there: calls wait in parallel, but each holds Python's lock while "
        "it computes"
    )
    if is_parallel(stage) or number(stage, "num_parallel_calls") is not None:
        return said, _INSTEAD
    return said, f"{stage.op}(..., num_parallel_calls={AUTOTUNE_NAME}) for the waiting; {_INSTEAD}"
