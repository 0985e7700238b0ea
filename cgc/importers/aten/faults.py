"""What faults say of an operation of a recorded step, and what to do about them."""

from __future__ import annotations

from cgc.importers.aten.graph import Node, Tensor, is_complex
from cgc.importers.faults import Described, Kind, Operation

_SIZES = "its result has a size that depends on the data; use torch.where(condition, x, y) or a mask"
_COMPLEX = "it has no rule for complex numbers; write it with their real and imaginary parts"
ADVICE = {
    **dict.fromkeys(
        (
            "aten.nonzero.default",
            "aten.masked_select.default",
            "aten._unique2.default",
            "aten.bincount.default",
            "aten.index.Tensor",
        ),
        _SIZES,
    ),
}
"""What to do about an operation that has no rule."""

REMEDIES = {
    Kind.UNKNOWN_OP: "write the step with operations that the CS system has, or compute this in the input "
    "function, which runs on the workers",
    Kind.TYPE: "the CS system computes in float32, float16, bfloat16 and integers of at most 32 bits; give "
    "dtype=torch.float32 where the tensor is made, or call .float(); complex numbers "
    "are complex64",
}


def operation(node: Node) -> Operation:
    """A node by the module that it belongs to, and the user's line."""
    results = tuple(describe(tensor) for tensor in node.results if tensor is not None)
    advice = ADVICE.get(node.op, _COMPLEX if is_complex(node) else None)
    return Operation(node.op, ".".join(node.layer), node.source, results, advice, "module", node.library)


def describe(tensor: Tensor) -> Described:
    """Element type and shape."""
    return Described(tensor.dtype, tensor.shape)
