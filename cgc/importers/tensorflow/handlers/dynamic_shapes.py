"""Tensors with a data-dependent number of rows: distinct values of `tf.unique`, rows selected by a mask.

Shapes are static, so a tensor with a row for each distinct value is computed with as many rows as there are
values in all, and the rest is padding. An operation may take such a tensor only if it is right whatever the
padding holds: these are the ones that optimizers apply to sparse gradients of embeddings, listed in
`ON_PADDED`. All others refuse it, because a sum or a mean over the rows would count the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import gather, gather_nd, scatter_rows, take_padded
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import dtype_of
from cgc.importers.tensorflow.constant_folding import fold
from cgc.importers.tensorflow.handlers import control_flow, elementwise, variables
from cgc.importers.tensorflow.handlers.optimizer import SPARSE_TABLE
from cgc.importers.tensorflow.node import (
    Handle,
    Handler,
    NodeContext,
    PaddedRows,
    PaddedSize,
    Result,
    SelectedRows,
    Table,
    Value,
)
from cgc.importers.tensorflow.origin import CHOOSE


def refuse(node: NodeContext) -> RefusedError:
    """Return the error for an operation on a tensor of this kind."""
    position = next(i for i, value in enumerate(node.inputs) if isinstance(value, PaddedRows | PaddedSize))
    return RefusedError(
        Kind.SHAPE,
        f"its input {node.op.inputs[position].name} has a size that depends on the data: the number of "
        "distinct values that tf.unique finds; only the sparse updates of optimizers accept it. If it is "
        "computed from the gradient of an embedding, pass apply_gradients() the dense one: "
        "tf.convert_to_tensor(gradient)",
    )


def handle_padded(node: NodeContext) -> Result:
    """Import an operation that has such a tensor, or its size, as an input."""
    handler = ON_PADDED.get(node.op.type)
    if handler is None:
        raise refuse(node)
    return handler(node)


def _origin(node: NodeContext) -> SSAValue:
    """Return the distinct values that determine the rows, the same for all inputs with padding."""
    found = [value.unique for value in node.inputs if isinstance(value, PaddedRows | PaddedSize)]
    if any(unique is not found[0] for unique in found):
        raise refuse(node)
    return found[0]


def _plain(node: NodeContext) -> NodeContext:
    """Return the operation, with rows in the place of padded rows; sizes of them are refused."""
    if any(isinstance(value, PaddedSize) for value in node.inputs):
        raise refuse(node)
    inputs: list[Value] = [v.value if isinstance(v, PaddedRows) else v for v in node.inputs]
    return replace(node, inputs=inputs)


def _shape(node: NodeContext) -> PaddedSize:
    rows = node.inputs[0]
    if not isinstance(rows, PaddedRows):
        raise refuse(node)
    shape = np.asarray(shape_of(rows.value), node.op.outputs[0].dtype.as_numpy_dtype)
    return PaddedSize(shape, np.arange(shape.size) == 0, rows.unique)


def _of_sizes(node: NodeContext) -> Value:
    """Take or moves sizes; where the number of rows is not among them they are known."""
    origin = _origin(node)
    sizes = [value.sizes if isinstance(value, PaddedSize) else value for value in node.inputs]
    is_open = [value.is_open if isinstance(value, PaddedSize) else value for value in node.inputs]
    arrays = [value for value in sizes if isinstance(value, np.ndarray)]
    marks = [value for value in is_open if isinstance(value, np.ndarray)]
    moved = fold(node.op, arrays) if len(arrays) == len(sizes) else None
    marked = fold(node.op, marks) if moved else None
    if moved is None or marked is None:
        raise refuse(node)
    return PaddedSize(moved[0], marked[0].astype(bool), origin) if marked[0].any() else moved[0]


def _segment_sum(node: NodeContext) -> Value:
    """Add up rows by number: into as many sums as there are distinct numbers, or in place."""
    data, ids, count = node.inputs
    if isinstance(data, PaddedRows) and isinstance(ids, PaddedRows) and ids.value is ids.unique:
        # The dense form of a sparse gradient: padding has an index beyond the last row, and is dropped.
        if data.unique is not ids.unique:
            raise refuse(node)
        (rows,) = node.ints(2, "number of segments")
        return scatter_rows(node.emit, ids.value, data.value, (rows, *shape_of(data.value)[1:]))
    scalar = isinstance(count, PaddedSize) and count.sizes.size == 1
    if not scalar or isinstance(data, PaddedRows | PaddedSize) or isinstance(ids, PaddedRows | PaddedSize):
        raise refuse(node)
    assert isinstance(count, PaddedSize)
    values, numbers = node.x(0), node.x(1)
    shape = (count.sizes.item(), *shape_of(values)[len(shape_of(numbers)) :])
    return PaddedRows(scatter_rows(node.emit, numbers, values, shape), count.unique)


def _gather(node: NodeContext) -> PaddedRows:
    """Return rows of a tensor or a variable; those of the padding are any rows of it."""
    indices = node.inputs[1]
    variable = isinstance(node.inputs[0], Handle)
    first_axis = len(node.inputs) < 3 or node.axis(2, "axis", 2) == 0
    if not isinstance(indices, PaddedRows) or isinstance(node.inputs[0], PaddedRows) or not first_axis:
        raise refuse(node)
    x = node.read() if variable else node.x(0)
    return PaddedRows(take_padded(node.emit, x, indices.value), indices.unique)


def _elementwise(handler: Handler) -> Handler:
    """Return an op on each row for itself; other operands must be the same for all rows."""

    def on_rows(node: NodeContext) -> PaddedRows:
        origin = _origin(node)
        plain = _plain(node)
        padded = {len(shape_of(v.value)) for v in node.inputs if isinstance(v, PaddedRows)}
        others = [node.shape(i) for i, v in enumerate(node.inputs) if not isinstance(v, PaddedRows)]
        rank = max(padded)
        if len(padded) > 1 or any(len(s) > rank or (len(s) == rank and s[0] != 1) for s in others):
            raise refuse(node)
        result = handler(plain)
        assert isinstance(result, SSAValue)
        return PaddedRows(result, origin)

    return on_rows


def _scatter(handler: Handler) -> Handler:
    """Return rows written to a variable; those of the padding are dropped."""

    def on_rows(node: NodeContext) -> Result:
        indices, updates = node.inputs[1:]
        _origin(node)
        by_unique = isinstance(indices, PaddedRows) and indices.value is indices.unique
        if not by_unique or (not isinstance(updates, PaddedRows) and node.shape(2) != ()):
            raise refuse(node)
        return handler(_plain(node))

    return on_rows


def _table(handlers: Table, wrap: Callable[[Handler], Handler], *names: str) -> Table:
    return {name: wrap(handlers[name]) for name in names}


def _on_either(node: NodeContext) -> Value:
    """Cast and the like: of rows elementwise, of sizes as numbers."""
    if isinstance(node.inputs[0], PaddedSize):
        return _of_sizes(node)
    result = _elementwise(elementwise.TABLE[node.op.type])(node)
    assert isinstance(result, PaddedRows)
    return result


_ARITHMETIC = ("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum", "Pow")
_FUNCTIONS = ("Neg", "Abs", "Sign", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Exp", "Tanh")

ON_PADDED: Table = {
    **_table(elementwise.TABLE, _elementwise, *_ARITHMETIC, *_FUNCTIONS),
    **_table(variables.TABLE, _scatter, "ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate"),
    **SPARSE_TABLE,
    **control_flow.TABLE,
    **{name: variables.TABLE[name] for name in ("Identity", "IdentityN", "StopGradient")},
    "Shape": _shape,
    "StridedSlice": _of_sizes,
    "Cast": _on_either,
    "UnsortedSegmentSum": _segment_sum,
    "ResourceGather": _gather,
    "Gather": _gather,
    "GatherV2": _gather,
}


def handle_selected(node: NodeContext) -> Result:
    """Import an operation with an input whose rows are selected by a mask."""
    handler = control_flow.call if control_flow.is_named_call(node.op) else ON_SELECTED.get(node.op.type)
    if handler is None:
        raise _refuse(node)
    return handler(node)


def _refuse(node: NodeContext) -> RefusedError:
    position = next(i for i, value in enumerate(node.inputs) if isinstance(value, SelectedRows))
    return RefusedError(
        Kind.SHAPE,
        f"its input {node.op.inputs[position].name} has a size that depends on the data: the number of "
        "rows that a mask selects",
        CHOOSE,
    )


def _where(node: NodeContext) -> SelectedRows:
    """Return the places where a mask holds, as tf.where of one argument and tf.boolean_mask have them."""
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


def _elementwise_selected(handler: Handler) -> Handler:
    """Return an op on each row by itself; other operands must be the same for all rows."""

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
    """Return losses `[N]` and gradients of logits `[T, N, C]`; a mask `[N, S]` selects the labels."""
    e, logits, (_, indices, labels, _) = node.emit, node.x(0), node.inputs
    count = shape_of(logits)[1]
    if not isinstance(indices, SelectedRows) or not isinstance(labels, SelectedRows):
        raise RefusedError(Kind.USAGE, "its labels are not rows of a batch; use tf.sparse.from_dense(labels)")
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
# Operations on rows that a mask selects.
ON_SELECTED: Table = {
    **{name: _elementwise_selected(elementwise.TABLE[name]) for name in _BY_ROW},
    **{name: variables.TABLE[name] for name in ("Identity", "IdentityN", "StopGradient")},
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), control_flow.call),
    "GatherNd": _gather_nd,
    "CTCLoss": _ctc_loss,
}
