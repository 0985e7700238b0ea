"""Faults of a recorded step: where they are in the user's program, and what to do about them."""

from __future__ import annotations

from cgc.importers.aten.graph import Node, Tensor
from cgc.importers.faults import Fault, Kind
from cs_toolkit.errors import ProgramFault

_SIZES = "its result has a size that depends on the data; use torch.where(condition, x, y) or a mask"
_ADVICE = {
    **dict.fromkeys(("aten.nonzero.default", "aten.masked_select.default", "aten._unique2.default"), _SIZES),
}
REMEDIES = {
    Kind.UNKNOWN_OP: "write the step with operations that the CS system has, or compute this in the input "
    "function, which runs on the workers",
    Kind.TYPE: "the CS system computes in float32, float16, bfloat16 and integers of at most 32 bits; give "
    "dtype=torch.float32 where the tensor is made, or call .float()",
}


def fault_of(kind: Kind, node: Node, message: str) -> Fault:
    """A fault that is about one operation."""
    result = next((tensor for tensor in node.results if tensor is not None), None)
    text = f"{node.op}: {where(node)}{_of_result(result)}: {message}"
    about = ProgramFault(
        kind=kind.value,
        message=text,
        op=node.op,
        node=".".join(node.layer) or None,
        shape=None if result is None else result.shape,
        dtype=None if result is None else result.dtype,
        source=node.source,
        what_to_do=_ADVICE.get(node.op, REMEDIES.get(kind)),
    )
    return Fault(kind, text, about)


def where(node: Node) -> str:
    """The module and the line of an operation."""
    layer = f"module {'.'.join(node.layer)}" if node.layer else "no module"
    return f"{layer}, {node.source or 'line unknown'}"


def describe(tensor: Tensor) -> str:
    """Element type and shape."""
    return f"{tensor.dtype}{list(tensor.shape)}"


def _of_result(result: Tensor | None) -> str:
    return "" if result is None else f", result {describe(result)}"
