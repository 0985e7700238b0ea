"""The handlers of all operations that can be imported, one module per family."""

from cgc.importers.tensorflow.handlers import (
    activations,
    batch_norm,
    bits,
    control_flow,
    convolution,
    diagonals,
    einsum,
    elementwise,
    functions,
    images,
    indexing,
    linear_algebra,
    loops,
    nd_indexing,
    optimizers,
    placing,
    plumbing,
    pooling,
    random,
    ranking,
    reductions,
    segments,
    shapes,
    special,
    tensor_lists,
    variables,
)
from cgc.importers.tensorflow.node import Table

HANDLERS: Table = {}
for _module in (
    activations,
    batch_norm,
    bits,
    control_flow,
    convolution,
    diagonals,
    einsum,
    elementwise,
    functions,
    images,
    indexing,
    linear_algebra,
    loops,
    nd_indexing,
    optimizers,
    placing,
    plumbing,
    pooling,
    random,
    ranking,
    reductions,
    segments,
    shapes,
    special,
    tensor_lists,
    variables,
):
    if _twice := HANDLERS.keys() & _module.TABLE.keys():
        raise AssertionError(f"two handlers for {sorted(_twice)}")
    HANDLERS.update(_module.TABLE)
