"""Places in an image of what pooling takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import Emitter, Shape, dtype_of


def places_of_largest(
    e: Emitter,
    x: SSAValue,
    pooled: Shape,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
) -> SSAValue:
    """Where the first of the largest elements of each window is, counted in the whole image.

    `[N, *pooled, C]` of int32 for `[N, *space, C]`.
    """
    space = shape_of(x)[1:-1]
    rows = [math.prod(space[axis + 1 :]) for axis in range(len(space))]
    x = e.pad(x, (0, *padding[::2], 0), (0, *padding[1::2], 0), e.scalar(-math.inf, dtype_of(x)))
    offsets = list(itertools.product(*map(range, ksize)))
    at_offsets = []
    for offset in offsets:
        ends = (at + (n - 1) * step + 1 for at, n, step in zip(offset, pooled[1:-1], strides, strict=True))
        limit = (pooled[0], *ends, pooled[-1])
        at_offsets.append(e.slice(x, (0, *offset, 0), limit, (1, *strides, 1)))
    columns = [e.reshape(found, (*pooled, 1)) for found in at_offsets]
    first = e.emit(ops.ArgMaxOp(e.emit(ops.ConcatOp(columns, len(pooled))), len(pooled), "int32"))
    starts = np.zeros((1, *pooled[1:-1], 1), np.int32)
    for axis, (count, step, low, row) in enumerate(
        zip(pooled[1:-1], strides, padding[::2], rows, strict=True)
    ):
        along = ((np.arange(count) * step - low) * row).astype(np.int32)
        starts = starts + along.reshape([-1 if i == axis + 1 else 1 for i in range(len(pooled))])
    within = (np.array(offsets) @ np.array(rows)).astype(np.int32)
    return e.add(e.take(e.constant(within), e.reshape(first, pooled), 0), e.constant(starts))
