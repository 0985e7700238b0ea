"""What is wrong with a graph, collected over the whole import and reported at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cgc.errors import (
    CompileError,
    DynamicShapeError,
    GraphImportError,
    GraphTypeError,
    UnsupportedOpsError,
)
from cgc.importers.tensorflow.source import user_line
from cs_toolkit.errors import ProgramFault


class Kind(Enum):
    """Kinds of faults, in the order in which they are reported."""

    UNKNOWN_OP = "unknown operation"
    TYPE = "element type"
    SHAPE = "dynamic shape"
    USAGE = "usage"


_ERRORS: dict[Kind, type[GraphImportError]] = {
    Kind.UNKNOWN_OP: UnsupportedOpsError,
    Kind.TYPE: GraphTypeError,
    Kind.SHAPE: DynamicShapeError,
    Kind.USAGE: GraphImportError,
}

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


class RefusedError(CompileError):
    """Raised for an operation that cannot be imported; becomes one fault among those of the graph."""

    def __init__(self, kind: Kind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, as lines of text; `op` is the operation that it is about, if it is one."""

    kind: Kind
    text: str
    op: Any = None

    def detail(self) -> ProgramFault:
        """The fault for programs."""
        if self.op is None:
            return ProgramFault(self.kind.value, self.text, what_to_do=_REMEDIES.get(self.kind))
        result = next(iter(self.op.outputs), None)
        shape = None if result is None or result.shape.rank is None else tuple(result.shape.as_list())
        return ProgramFault(
            kind=self.kind.value,
            message=self.text,
            op=self.op.type,
            node=self.op.name,
            shape=shape,
            dtype=None if result is None else result.dtype.name,
            source=user_line(self.op),
            what_to_do=_ADVICE.get(self.op.type, _REMEDIES.get(self.kind)),
        )


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
        Fault(Kind.UNKNOWN_OP, _describe_group(op_type, group), group[0])
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


def raise_if_any(faults: list[Fault]) -> None:
    """Raises one error that lists all faults by kind; its class is that of the first kind present."""
    if not faults:
        return
    by_kind = {kind: list(dict.fromkeys(f.text for f in faults if f.kind is kind)) for kind in Kind}
    present = [kind for kind in Kind if by_kind[kind]]
    lines: list[str] = []
    for kind in present:
        found = by_kind[kind]
        lines += [_HEADS[kind].format(count=len(found), plural="" if len(found) == 1 else "s")]
        lines += [f"  {text}" for text in found]
        lines += [f"  what to do: {_REMEDIES[kind]}"] if kind in _REMEDIES else []
    texts = tuple(text for kind in present for text in by_kind[kind])
    first = {fault.text: fault for fault in reversed(faults)}
    raise _ERRORS[present[0]]("\n".join(lines), texts, tuple(first[text].detail() for text in texts))


_HEADS = {
    Kind.UNKNOWN_OP: "{count} operation{plural} of the graph cannot be compiled:",
    Kind.TYPE: "{count} tensor{plural} of the graph with an element type that the CS system does not have:",
    Kind.SHAPE: "{count} tensor{plural} of the graph without a static shape:",
    Kind.USAGE: "{count} fault{plural} in the graph:",
}
_REMEDIES = {
    Kind.UNKNOWN_OP: "write them with other TensorFlow operations, compute them in the input function, "
    "or train without a CS system (no --cs_ip)",
    Kind.TYPE: "build the model with float32 (tf.cast(x, tf.float32)) and int32; "
    "turn strings into numbers in the input function",
}
