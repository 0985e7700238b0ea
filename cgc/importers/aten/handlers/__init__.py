"""The handlers of all operations that can be imported: those of an op of CIRH in the file of its name."""

from cgc.importers.aten.graph import Node, is_complex
from cgc.importers.aten.handlers import (
    activation,
    batch_norm,
    complex_numbers,
    constant,
    convolution,
    distances,
    elementwise,
    fourier,
    indexing,
    layer_norm,
    linalg,
    linear,
    pool,
    random,
    reduction,
    resampling,
    rows,
    shape,
    softmax,
    special,
    token_loop,
)
from cgc.importers.aten.node import Handler, Table

HANDLERS: Table = {}
for _module in (
    activation,
    batch_norm,
    constant,
    convolution,
    distances,
    elementwise,
    indexing,
    layer_norm,
    linalg,
    linear,
    pool,
    random,
    reduction,
    resampling,
    rows,
    shape,
    softmax,
    special,
    token_loop,
):
    if _twice := HANDLERS.keys() & _module.TABLE.keys():
        raise AssertionError(f"two handlers for {sorted(_twice)}")
    HANDLERS.update(_module.TABLE)

COMPLEX_HANDLERS: Table = {**complex_numbers.TABLE, **fourier.TABLE}
"""Handlers of operations that read or make complex tensors."""


def handler_of(node: Node) -> Handler | None:
    """The handler of an operation; None if it cannot be imported."""
    return (COMPLEX_HANDLERS if is_complex(node) else HANDLERS).get(node.op)
