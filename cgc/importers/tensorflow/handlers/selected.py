"""Elements that a mask selects: their places, what is read there, and labels of alignments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import gather, gather_nd
from cgc.importers.emit import dtype_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.faults import CHOOSE
from cgc.importers.tensorflow.handlers import elementwise, functions, plumbing
from cgc.importers.tensorflow.node import Handler, NodeContext, Result, SelectedRows, Table, Value


def handle(node: NodeContext) -> Result:
    """Import an operation of which an input has as many rows as a mask selects."""
    handler = functions.call if functions.is_named_call(node.op) else ON_SELECTED.get(node.op.type)
    if handler is None:
        raise _refuse(node)
    return handler(node)


def _refuse(node: NodeContext) -> RefusedError:
    position = next(i for i, value in enumerate(node.inputs) if isinstance(value, SelectedRows))
    return RefusedError(
        Kind.SHAPE,
        f"its input {node.op.inputs[position].name} has a size that depends on the data: as many rows as a "
        "mask selects",
        CHOOSE,
    )


def _where(node: NodeContext) -> SelectedRows:
    """The places where a mask holds, as tf.where of one argument and tf.boolean_mask have them."""
    e, mask = node.emit, node.x(0)
    if dtype_of(mask) != "bool":
        mask = e.compare("NE", mask, e.like(0, mask))
    shape = shape_of(mask)
    places = e.compact(np.indices(shape).reshape(len(shape), -1).T.astype(np.int64))
    return SelectedRows(places, places, mask)


def _gather_nd(node: NodeContext) -> SelectedRows:
    x, places = node.inputs
    if isinstance(x, SelectedRows) or not isinstance(places, SelectedRows):
        raise _refuse(node)
    return replace(places, value=gather_nd(node.emit, node.x(0), places.value))


def _elementwise(handler: Handler) -> Handler:
    """An op on each row by itself; other operands must be the same for all rows."""

    def on_rows(node: NodeContext) -> SelectedRows:
        selected = [value for value in node.inputs if isinstance(value, SelectedRows)]
        ranks = {len(shape_of(rows.value)) for rows in selected}
        others = [node.shape(i) for i, v in enumerate(node.inputs) if not isinstance(v, SelectedRows)]
        alike = len(ranks) == 1 and all(rows.mask is selected[0].mask for rows in selected)
        if not alike or any(len(s) > max(ranks) or (len(s) == max(ranks) and s[0] != 1) for s in others):
            raise _refuse(node)
        inputs: list[Value] = [v.value if isinstance(v, SelectedRows) else v for v in node.inputs]
        found = handler(replace(node, inputs=inputs))
        assert isinstance(found, SSAValue)
        return replace(selected[0], value=found)

    return on_rows


def _ctc_loss(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """Losses `[N]` and gradients of logits `[T, N, C]`; labels are what a mask `[N, S]` selects."""
    e, logits, (_, indices, labels, _) = node.emit, node.x(0), node.inputs
    count = shape_of(logits)[1]
    if not isinstance(indices, SelectedRows) or not isinstance(labels, SelectedRows):
        raise RefusedError(Kind.USAGE, "its labels are no rows of a batch; give tf.sparse.from_dense(labels)")
    mask = labels.mask
    if indices.value is not labels.places or len(shape_of(mask)) != 2 or shape_of(mask)[0] != count:
        raise _refuse(node)
    settings = {"preprocess_collapse_repeated": False, "ctc_merge_repeated": True}
    settings["ignore_longer_outputs_than_inputs"] = False
    for name, expected in settings.items():
        if node.attr(name) != expected:
            raise RefusedError(Kind.USAGE, f"{name} is {node.attr(name)}, expected {expected}")
    size = shape_of(mask)[1]
    # Labels of a row move to its beginning: first those that the mask selects, each in order.
    place = e.broadcast(e.emit(ops.ArangeOp(size, 0, -1)), shape_of(mask))
    _, order = e.emit_all(ops.TopKOp(e.select(mask, place, e.sub(place, e.like(size, place))), size))
    targets = gather(e, e.reshape(labels.value, shape_of(mask)), order, 1, 1)
    counts = e.reduce("ADD", e.cast(mask, "int32"), (1,))
    rows = e.transpose(logits, (1, 0, 2))
    log_probs = e.emit(ops.LogSoftmaxOp(rows, 2))
    lengths, blank = e.cast(node.x(3), "int32"), shape_of(logits)[2] - 1
    losses, gradient = e.emit_all(ops.CtcLossOp(log_probs, targets, lengths, counts, blank))
    return losses, e.transpose(gradient, (1, 0, 2))


_BY_ROW = (
    *("Add", "AddV2", "Sub", "Mul", "Cast", "Less", "LessEqual", "Greater", "GreaterEqual", "Equal"),
    *("NotEqual", "Select", "SelectV2", "Maximum", "Minimum"),
)

TABLE: Table = {"Where": _where, "CTCLoss": _ctc_loss}
ON_SELECTED: Table = {
    **{name: _elementwise(elementwise.TABLE[name]) for name in _BY_ROW},
    **{name: plumbing.TABLE[name] for name in ("Identity", "IdentityN", "StopGradient")},
    **functions.TABLE,
    "GatherNd": _gather_nd,
    "CTCLoss": _ctc_loss,
}
"""Operations on rows that a mask selects."""
