"""What is wrong with a graph, collected over the whole import and reported at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cgc.errors import CompileError, DynamicShapeError, GraphImportError, GraphTypeError, UnsupportedOpsError
from cgc.importers.tensorflow.source import user_line


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

_LOOPS = "unroll the loop in Python, or compute it in the input function"
_BRANCHES = "use tf.where, which computes both sides, or decide in Python while the graph is built"
_SIZES = "its result has a size that depends on the data; use tf.where(condition, x, y) or a mask"
_REF_VARIABLES = "call tf.compat.v1.enable_resource_variables() before the graph is built"
_INPUT = "move it to the input function, which runs on the workers"

_ADVICE = {
    **dict.fromkeys(("While", "StatelessWhile", "Enter", "Exit", "NextIteration", "LoopCond"), _LOOPS),
    **dict.fromkeys(("Case", "StatelessCase", "Switch", "Merge"), _BRANCHES),
    **dict.fromkeys(
        ("Where", "DynamicPartition", "NonMaxSuppressionV3", "UniqueV2", "UniqueWithCounts"), _SIZES
    ),
    **dict.fromkeys(("PyFunc", "EagerPyFunc", "IteratorGetNext", "DecodeRaw", "ParseExample"), _INPUT),
}


class RefusedError(CompileError):
    """Raised for an operation that cannot be imported; becomes one fault among those of the graph."""

    def __init__(self, kind: Kind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, as lines of text."""

    kind: Kind
    text: str


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
    return [Fault(Kind.UNKNOWN_OP, _describe_group(op_type, group)) for (op_type, _), group in groups.items()]


def _describe_group(op_type: str, group: list[Any]) -> str:
    first = group[0]
    result = ", ".join(describe_tensor(t) for t in first.outputs) or "no output"
    more = f" ({len(group)} such nodes)" if len(group) > 1 else ""
    uses_ref = any(str(t.dtype.name).endswith("_ref") for t in (*first.inputs, *first.outputs))
    advice = _REF_VARIABLES if uses_ref else _ADVICE.get(op_type)
    return f"{op_type}: {where(first)}{more}, result {result}" + (f"; {advice}" if advice else "")


def raise_if_any(faults: list[Fault]) -> None:
    """Raises one error that lists all faults by kind; its class is that of the first kind present."""
    if not faults:
        return
    by_kind = {kind: list(dict.fromkeys(f.text for f in faults if f.kind is kind)) for kind in Kind}
    present = [kind for kind in Kind if by_kind[kind]]
    lines: list[str] = []
    for kind in present:
        texts = by_kind[kind]
        lines += [_HEADS[kind].format(count=len(texts), plural="" if len(texts) == 1 else "s")]
        lines += [f"  {text}" for text in texts]
        lines += [f"  what to do: {_REMEDIES[kind]}"] if kind in _REMEDIES else []
    raise _ERRORS[present[0]]("\n".join(lines), tuple(t for kind in present for t in by_kind[kind]))


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
