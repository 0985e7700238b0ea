"""The handlers of all operations that can be imported: those of an op of CIRH in the file of its name."""

from cgc.importers.aten.handlers import (
    activation,
    batch_norm,
    constant,
    convolution,
    distances,
    elementwise,
    indexing,
    layer_norm,
    linear,
    pool,
    random,
    reduction,
    resampling,
    rows,
    shape,
    softmax,
    special,
)
from cgc.importers.aten.node import Table

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
    linear,
    pool,
    random,
    reduction,
    resampling,
    rows,
    shape,
    softmax,
    special,
):
    if _twice := HANDLERS.keys() & _module.TABLE.keys():
        raise AssertionError(f"two handlers for {sorted(_twice)}")
    HANDLERS.update(_module.TABLE)
