"""The handlers of all operations that can be imported, by operation name."""

from cgc.importers.aten.graph import Node, is_complex
from cgc.importers.aten.handlers import (
    activation,
    complex_numbers,
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    random,
    reduction,
    resampling,
    shape,
    softmax,
    token_loop,
)
from cgc.importers.aten.node import Handler, Table

HANDLERS: Table = {}
for _module in (
    activation,
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    random,
    reduction,
    resampling,
    shape,
    softmax,
    token_loop,
):
    if _twice := HANDLERS.keys() & _module.TABLE.keys():
        raise AssertionError(f"two handlers for {sorted(_twice)}")
    HANDLERS.update(_module.TABLE)

# Handlers of operations that read or make complex tensors.
COMPLEX_HANDLERS: Table = complex_numbers.TABLE


def handler_of(node: Node) -> Handler | None:
    """Return the handler of an operation, or None if it cannot be imported."""
    return (COMPLEX_HANDLERS if is_complex(node) else HANDLERS).get(node.op)
