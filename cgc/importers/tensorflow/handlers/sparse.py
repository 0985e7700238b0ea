"""Sparse tensors whose places are known: written in the program, not read from data."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import scatter_rows
from cgc.importers.tensorflow.node import NodeContext, Table


def _to_dense(node: NodeContext) -> SSAValue:
    """SparseToDense of (places, shape, values, default)."""
    e, shape = node.emit, tuple(node.ints(1, "shape"))
    places = node.static(0, "indices").reshape(-1, max(1, len(shape)))
    values, default = node.x(2), node.x(3)
    numbers = e.constant(np.asarray(np.ravel_multi_index(tuple(places.T), shape), np.int32))
    table = e.broadcast(default, (math.prod(shape),))
    updates = e.broadcast(values, (len(places),))
    return e.reshape(e.emit(ops.ScatterOp(table, numbers, updates, "SET")), shape)


def _matmul(node: NodeContext) -> SSAValue:
    """SparseTensorDenseMatMul of (places, values, shape of the sparse matrix, dense matrix)."""
    e, places = node.emit, node.static(0, "indices").astype(np.int32)
    rows, columns = places[:, 0], places[:, 1]
    height, width = node.ints(2, "shape")
    if node.attr("adjoint_a"):
        rows, columns, height = columns, rows, width
    dense = node.x(3)
    if node.attr("adjoint_b"):
        dense = e.transpose(dense, (1, 0))
    taken = e.take(dense, e.constant(columns), 0)
    terms = e.mul(taken, e.reshape(node.x(1), (len(places), 1)))
    return scatter_rows(e, e.constant(rows), terms, (height, shape_of(dense)[1]))


TABLE: Table = {"SparseToDense": _to_dense, "SparseTensorDenseMatMul": _matmul}
