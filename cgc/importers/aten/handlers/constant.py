"""Tensors that are made out of nothing."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.aten.node import Handler, NodeContext, Table


def _filled(value: float) -> Handler:
    return lambda node: node.emit.full(value, node.shape, node.dtype)


def _full(node: NodeContext) -> SSAValue:
    return node.emit.full(node.arg("fill_value"), node.shape, node.dtype)


def _fill(node: NodeContext) -> SSAValue:
    return node.emit.broadcast(node.cast("value"), node.shape)


def _scalar(node: NodeContext) -> SSAValue:
    return node.emit.scalar(node.arg("s"), node.dtype)


def _arange(node: NodeContext) -> SSAValue:
    start, step = node.arg("start", 0), node.arg("step", 1)
    if isinstance(start, int) and isinstance(step, int):
        return node.emit.emit(ops.ArangeOp(node.shape[0], start, step, node.dtype))
    return node.emit.constant((start + step * np.arange(node.shape[0])).astype(node.dtype))


def _eye(node: NodeContext) -> SSAValue:
    rows, columns = node.shape
    return node.emit.constant(np.eye(rows, columns, dtype=node.dtype))


def _linspace(node: NodeContext) -> SSAValue:
    values = np.linspace(node.arg("start"), node.arg("end"), node.shape[0])
    return node.emit.constant(values.astype(node.dtype))


TABLE: Table = {
    **{
        f"aten.{name}.default": _filled(value)
        for start, value in (("zeros", 0), ("ones", 1), ("empty", 0))
        for name in (f"{start}_like", f"new_{start}")
    },
    "aten.zeros.default": _filled(0),
    "aten.ones.default": _filled(1),
    "aten.zero.default": _filled(0),
    "aten.empty.memory_format": _filled(0),
    "aten.empty_permuted.default": _filled(0),
    "aten.empty_strided.default": _filled(0),
    "aten.new_empty_strided.default": _filled(0),
    "aten.full.default": _full,
    "aten.full_like.default": _full,
    "aten.new_full.default": _full,
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
    "aten.scalar_tensor.default": _scalar,
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
    "aten.linspace.default": _linspace,
}
