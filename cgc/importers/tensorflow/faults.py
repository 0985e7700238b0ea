"""Faults of a TensorFlow graph: where they are, and what to do about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from cgc.importers.faults import Fault, Kind
from cgc.importers.tensorflow.source import user_line
from cs_toolkit.errors import ProgramFault

_LOOPS = (
    "call tf.compat.v1.enable_control_flow_v2() before the graph is built, unroll the loop in Python, or "
    "compute it in the input function"
)
_BRANCHES = (
    "call tf.compat.v1.enable_control_flow_v2() before the graph is built, use tf.where, or decide in Python "
    "while the graph is built"
)
_SIZES = "its result has a size that depends on the data; use tf.where(condition, x, y) or a mask"
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


_RESULTS_SHOWN = 4


def fault_of(kind: Kind, text: str, op: Any) -> Fault:
    """A fault that is about an operation of a graph."""
    result = next(iter(op.outputs), None)
    shape = None if result is None or result.shape.rank is None else tuple(result.shape.as_list())
    about = ProgramFault(
        kind=kind.value,
        message=text,
        op=op.type,
        node=op.name,
        shape=shape,
        dtype=None if result is None else result.dtype.name,
        source=user_line(op),
        what_to_do=_ADVICE.get(op.type, REMEDIES.get(kind)),
    )
    return Fault(kind, text, about)


def describe_tensor(tensor: Any) -> str:
    """For example `float32[8,?]`."""
    if tensor.shape.rank is None:
        return f"{tensor.dtype.name}[shape unknown]"
    sizes = ",".join("?" if size is None else str(size) for size in tensor.shape.as_list())
    return f"{tensor.dtype.name}[{sizes}]"


def where(op: Any) -> str:
    """The node and, where known, the user's line: `node 'loss/Foo', line model.py:41`."""
    line = user_line(op)
    return f"node '{op.name}'" + (f", line {line}" if line else "")


def unknown_op_faults(ops: Iterable[Any]) -> list[Fault]:
    """One fault for each op type and user's line, in graph order; a fault counts its further nodes."""
    groups: dict[tuple[str, str | None], list[Any]] = defaultdict(list)
    for op in ops:
        groups[op.type, user_line(op)].append(op)
    return [
        fault_of(Kind.UNKNOWN_OP, _describe_group(op_type, group), group[0])
        for (op_type, _), group in groups.items()
    ]


def describe_results(op: Any) -> str:
    """For example `result float32[8,3]`; of many results the first ones."""
    listed = [describe_tensor(tensor) for tensor in op.outputs[:_RESULTS_SHOWN]]
    more = ", ..." if len(op.outputs) > _RESULTS_SHOWN else ""
    return f"result {', '.join(listed)}{more}" if listed else "no result"


def _describe_group(op_type: str, group: list[Any]) -> str:
    first = group[0]
    more = f" ({len(group)} such nodes)" if len(group) > 1 else ""
    uses_ref = any(str(t.dtype.name).endswith("_ref") for t in (*first.inputs, *first.outputs))
    advice = _REF_VARIABLES if uses_ref else _ADVICE.get(op_type)
    return f"{op_type}: {where(first)}{more}, {describe_results(first)}" + (f"; {advice}" if advice else "")


REMEDIES = {
    Kind.UNKNOWN_OP: "write them with other TensorFlow operations, compute them in the input function, "
    "or train without a CS system (no --cs_ip)",
    Kind.TYPE: "build the model with float32 (tf.cast(x, tf.float32)) and int32; "
    "turn strings into numbers in the input function",
}
