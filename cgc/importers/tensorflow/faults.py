"""Faults of a TensorFlow graph: where they are, and what to do about them."""

from __future__ import annotations

from typing import Any

from cgc.importers.faults import Described, Kind, Operation
from cgc.importers.tensorflow.source import user_line

_LOOPS = (
    "call tf.compat.v1.enable_control_flow_v2() before the graph is built, unroll the loop in Python, or "
    "compute it in the input function"
)
_BRANCHES = (
    "call tf.compat.v1.enable_control_flow_v2() before the graph is built, use tf.where, or decide in Python "
    "while the graph is built"
)
CHOOSE = "use tf.where(condition, x, y) or a mask"
"""What to do about a selection of rows."""
_SIZES = f"its result has a size that depends on the data; {CHOOSE}"
_REF_VARIABLES = "call tf.compat.v1.enable_resource_variables() before the graph is built"
_CANDIDATES = (
    "draw the candidates in the input function (tf.random.log_uniform_candidate_sampler) and give the loss "
    "all three of its results as sampled_values"
)
_HITS = "give the loss remove_accidental_hits=False, or make the mask in the input function"
_INPUT = "move it to the input function, which runs on the workers"

_ADVICE = {
    **dict.fromkeys(("Enter", "Exit", "NextIteration", "LoopCond"), _LOOPS),
    **dict.fromkeys(("Switch", "Merge"), _BRANCHES),
    **dict.fromkeys(
        ("Where", "DynamicPartition", "NonMaxSuppressionV3", "UniqueV2", "UniqueWithCounts"), _SIZES
    ),
    **dict.fromkeys(("LogUniformCandidateSampler", "UniformCandidateSampler"), _CANDIDATES),
    "ComputeAccidentalHits": _HITS,
    **dict.fromkeys(("PyFunc", "EagerPyFunc", "IteratorGetNext", "DecodeRaw", "ParseExample"), _INPUT),
}


REMEDIES = {
    Kind.UNKNOWN_OP: "write them with other TensorFlow operations, compute them in the input function, "
    "or train on this CPU (without cs_ip)",
    Kind.TYPE: "build the model with float32 (tf.cast(x, tf.float32)) and int32; "
    "turn strings into numbers in the input function",
}


def operation(op: Any) -> Operation:
    """What faults say of a tf.Operation."""
    uses_ref = any(tensor.dtype.name.endswith("_ref") for tensor in (*op.inputs, *op.outputs))
    advice = _REF_VARIABLES if uses_ref else _ADVICE.get(op.type)
    return Operation(op.type, op.name, user_line(op), tuple(map(described, op.outputs)), advice)


def described(tensor: Any) -> Described:
    """Element type and shape of a tf.Tensor."""
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return Described(tensor.dtype.name, shape)
