"""The handlers of all operations that can be imported: those of an op of CIRH in the file of its name."""

from typing import Any

from cgc.importers.tensorflow.handlers import (
    activation,
    batch_norm,
    bits,
    constant,
    control_flow,
    convolution,
    counting,
    diagonals,
    einsum,
    elementwise,
    functions,
    images,
    indexing,
    linalg,
    linear,
    local_norm,
    loops,
    optimizer,
    placing,
    plumbing,
    pool,
    random,
    reduction,
    rows,
    segments,
    selected,
    shape,
    softmax,
    sparse,
    special,
    tensor_lists,
    variables,
)
from cgc.importers.tensorflow.node import Handler, Table

HANDLERS: Table = {}
for _module in (
    activation,
    batch_norm,
    bits,
    constant,
    control_flow,
    convolution,
    counting,
    diagonals,
    einsum,
    elementwise,
    functions,
    images,
    indexing,
    linalg,
    linear,
    local_norm,
    loops,
    optimizer,
    placing,
    plumbing,
    pool,
    random,
    reduction,
    rows,
    segments,
    selected,
    shape,
    softmax,
    sparse,
    special,
    tensor_lists,
    variables,
):
    if _twice := HANDLERS.keys() & _module.TABLE.keys():
        raise AssertionError(f"two handlers for {sorted(_twice)}")
    HANDLERS.update(_module.TABLE)


def handler_of(op: Any) -> Handler | None:
    """The handler of an operation; None where nothing imports it."""
    found = HANDLERS.get(op.type)
    return functions.call if found is None and functions.is_named_call(op) else found
