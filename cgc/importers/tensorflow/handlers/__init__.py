"""The handlers of all operations that can be imported, one module per family."""

from cgc.importers.tensorflow.handlers import (
    activations,
    batch_norm,
    convolution,
    elementwise,
    functions,
    indexing,
    linear_algebra,
    optimizers,
    plumbing,
    pooling,
    random,
    reductions,
    shapes,
    variables,
)
from cgc.importers.tensorflow.node import Table

HANDLERS: Table = {}
for _module in (
    activations,
    batch_norm,
    convolution,
    elementwise,
    functions,
    indexing,
    linear_algebra,
    optimizers,
    plumbing,
    pooling,
    random,
    reductions,
    shapes,
    variables,
):
    if _twice := HANDLERS.keys() & _module.TABLE.keys():
        raise AssertionError(f"two handlers for {sorted(_twice)}")
    HANDLERS.update(_module.TABLE)
