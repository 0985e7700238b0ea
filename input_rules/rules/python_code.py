"""Python in the pipeline: one call computes at a time, whatever number of CPUs there are."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.context import AUTOTUNE_NAME, Context, finding, flag, number
from input_rules.rules.expected_gains import spared
from input_rules.throughput import is_parallel

_INSTEAD = "operations of TensorFlow instead, or the work done once when the data are prepared"
_LOCK_FREE = "files, a network, decoders and NumPy that give the lock up"
"""What calls of Python can do side by side."""


def calls(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


RULES = (calls,)
