"""The handlers of all operations that can be imported, by operation type."""

from typing import Any

from cgc.importers.tensorflow.handlers import (
    activation,
    control_flow,
    convolution,
    dynamic_shapes,
    elementwise,
    images,
    indexing,
    linear,
    normalization,
    optimizer,
    random,
    reduction,
    shape,
    softmax,
    tensor_lists,
    variables,
)
from cgc.importers.tensorflow.node import Handler, Table

HANDLERS: Table = {}
for _module in (
    activation,
    control_flow,
    convolution,
    dynamic_shapes,
    elementwise,
    images,
    indexing,
    linear,
    normalization,
    optimizer,
    random,
    reduction,
    shape,
    softmax,
    tensor_lists,
    variables,
):
    if _twice := HANDLERS.keys() & _module.TABLE.keys():
        raise AssertionError(f"two handlers for {sorted(_twice)}")
    HANDLERS.update(_module.TABLE)


def handler_of(op: Any) -> Handler | None:
    """Return the handler of an operation, or None if it cannot be imported."""
    found = HANDLERS.get(op.type)
    return control_flow.call if found is None and control_flow.is_named_call(op) else found
