"""What a step on the CS system leaves out of a program, because it is for the host: prints and checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from cs_toolkit.source_files import is_users_file

_CHECK, _PRINT = "an assert", "tf.print"
WORDS: Mapping[str, str] = {
    "Assert": _CHECK,
    "CheckNumerics": "check_numerics",
    "CheckNumericsV2": "check_numerics",
    "Print": "tf.compat.v1.Print",
    "PrintV2": _PRINT,
    "WriteHistogramSummary": "tf.summary",
    "WriteImageSummary": "tf.summary",
    "WriteScalarSummary": "tf.summary",
    "WriteSummary": "tf.summary",
}
"""What a user calls the operations. Summaries of TensorFlow 1 are not among them: they are outputs."""

_HOMES = frozenset(
    {
        *("check_ops.py", "control_flow_assert.py", "numerics.py"),
        *("exceptions.py", "py_builtins.py"),  # of AutoGraph, for `assert` and `print`
        *("gen_array_ops.py", "gen_logging_ops.py", "logging_ops.py"),
        *("gen_summary_ops.py", "summary_ops_v2.py", "summary_v2.py"),
    }
)
"""Files of TensorFlow, and of TensorBoard's summaries, with the functions that users call for these."""
_WRAPPERS = ("/tensorflow/python/util/", "/tensorflow/python/ops/weak_tensor_ops.py")
"""Files of TensorFlow whose frames lie between a call and the function."""


def announced(op: Any) -> str | None:
    """`tf.print at FILE:LINE` for an operation that the user has asked for; None for one of a library."""
    if op.type not in WORDS:
        return None
    frames = [frame for frame in op.traceback or () if not any(w in frame.filename for w in _WRAPPERS)]
    for position in reversed(range(len(frames))):
        if is_users_file(frames[position].filename):
            called = frames[position + 1 : position + 2]
            if called and PurePath(called[0].filename).name in _HOMES:
                return f"{WORDS[op.type]} at {frames[position].filename}:{frames[position].lineno}"
            return None
    return None
