"""TensorFlow's own profiler on an input pipeline: a loop that reads it, a trace, the analysis of the trace.

    python -m benchmarks.input_profile record FUNCTION FOLDER      # needs TensorFlow
    python -m benchmarks.input_profile analyze FOLDER              # needs the package xprof

The loop follows TensorFlow's guide: some steps to warm up, then a trace of annotated steps. Its analysis is
what the page "input_pipeline_analyzer" of the profiler shows; another one, "tf_data_bottleneck_analysis", is
in no maintained release (last in tensorboard-plugin-profile 2.19). `analyze` prints a JSON object with the
operations of the input by their self time, the largest first, and with what the page says and advises: it
has a hint for each kind of work, the same for every input, and says how long each kind took; the hint for the
kind that took longest is what it advises here.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

WARM_UP_S = 2.0
TRACED_S = 1.0
MOST_STEPS = 400
_TOOL = "input_pipeline_analyzer"
_HINT_FOR = {
    "enqueue_us": "Enqueuing data",
    "preprocessing_us": "Data preprocessing",
    "advanced_file_read_us": "Reading data from files in advance",
    "demanded_file_read_us": "Reading data from files on demand",
    "unclassified_nonequeue_us": "Other data reading or processing",
}
"""The start of the hint by the name of a time on the page."""


def record(function: str, folder: str) -> None:
    """Reads a pipeline of `benchmarks.input_pipelines` as a training would, and writes a trace."""
    import tensorflow as tf

    from benchmarks import input_pipelines

    @tf.function
    def step(batch: Any) -> Any:
        return [tf.reduce_sum(tf.cast(part, tf.float32)) for part in tf.nest.flatten(batch)]

    batches = iter(getattr(input_pipelines, function)())
    end = time.monotonic() + WARM_UP_S
    while time.monotonic() < end:
        step(next(batches))
    tf.profiler.experimental.start(folder)
    end = time.monotonic() + TRACED_S
    for number in range(MOST_STEPS):
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            step(next(batches))
        if time.monotonic() > end and number > 10:
            break
    tf.profiler.experimental.stop()


def analyze(folder: str) -> dict[str, Any]:
    """Findings of TensorFlow's profiler in a trace."""
    from xprof.convert import raw_to_tool_data

    paths = [str(path) for path in Path(folder).rglob("*.xplane.pb")]
    data, _ = raw_to_tool_data.xspace_to_tool_data(paths, _TOOL, {})
    tables = json.loads(data)
    operations: list[tuple[str, float]] = []
    said = ""
    hints: list[str] = []
    spent: dict[str, float] = {}
    for table in tables:
        names = [column["id"] for column in table["cols"]]
        rows = [dict(zip(names, (cell["v"] for cell in row["c"]), strict=True)) for row in table["rows"]]
        facts = table.get("p", {})
        said = facts.get("input_conclusion", said)
        spent.update((name, float(facts[name])) for name in _HINT_FOR if name in facts)
        if "selfTimeInMs" in names:
            operations = [(row["opName"], row["selfTimeInMs"]) for row in rows]
        elif names == ["link"]:
            hints = [re.sub("<[^>]*>", "", row["link"]) for row in rows]
    operations.sort(key=lambda operation: -operation[1])
    return {"operations": operations, "conclusion": said, "advice": hint_for(hints, spent)}


def hint_for(hints: list[str], spent: dict[str, float]) -> str:
    """The hint for the kind of work that took longest; empty where nothing took time."""
    if not any(spent.values()):
        return ""
    kind = _HINT_FOR[max(spent, key=lambda name: spent[name])]
    return next((hint for hint in hints if hint.startswith(kind)), "")


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:])
    else:
        print(json.dumps(analyze(*sys.argv[2:])))
