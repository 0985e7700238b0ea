"""Python in the pipeline: one record at a time, whatever number of CPUs there are."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.context import Context, finding, flag
from input_analyzer.findings.gains import spared
from input_analyzer.pipeline import Pipeline


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
            yield finding(
                "python-function",
                "warning",
                stage,
                "it calls Python (py_function or numpy_function), which holds one lock: calls do not run "
                "side by side, whatever num_parallel_calls says",
                "operations of TensorFlow instead, or the work done once when the data are prepared",
                gain,
            )


RULES = (calls,)
