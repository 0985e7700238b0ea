"""Diagonals of the matrices in the last two dimensions."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import NodeContext, Table


def _diag(node: NodeContext) -> SSAValue:
    """A matrix with the given diagonal, zero (MatrixDiagV3: a given value) elsewhere."""
    e, diagonal = node.emit, node.x(0)
    size = shape_of(diagonal)[-1]
    rows = columns = size
    filler = e.scalar(0, dtype_of(diagonal))
    if len(node.inputs) > 1:
        _require_main_diagonal(node, 1)
        (rows,), (columns,) = node.ints(2, "num_rows"), node.ints(3, "num_cols")
        rows, columns, filler = max(rows, size), max(columns, size), node.x(4)
    wide = _wider(e, diagonal, columns)
    return e.select(_on_diagonal(e, rows, columns), _as_columns(e, wide), filler)


def _diag_part(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    if len(node.inputs) > 1:
        _require_main_diagonal(node, 1)
    rows, columns = shape_of(x)[-2:]
    kept = e.select(_on_diagonal(e, rows, columns), x, e.scalar(0, dtype_of(x)))
    total = e.reduce("ADD", kept, (len(shape_of(x)) - 1,))
    if rows <= columns:
        return total
    limit = (*shape_of(x)[:-2], columns)
    return e.slice(total, (0,) * len(limit), limit, (1,) * len(limit))


def _tensor_diag_part(node: NodeContext) -> SSAValue:
    """Of a matrix its diagonal."""
    shape = node.shape(0)
    if len(shape) != 2:
        raise RefusedError(Kind.USAGE, f"its input has shape {list(shape)}, expected a matrix")
    return _diag_part(node)


def _set_diag(node: NodeContext) -> SSAValue:
    e, x, diagonal = node.emit, node.x(0), node.x(1)
    if len(node.inputs) > 2:
        _require_main_diagonal(node, 2)
    rows, columns = shape_of(x)[-2:]
    return e.select(_on_diagonal(e, rows, columns), _as_columns(e, _wider(e, diagonal, columns)), x)


def _wider(e: Emitter, diagonal: SSAValue, columns: int) -> SSAValue:
    """The diagonal with zeros behind it, up to `columns` elements."""
    *leading, size = shape_of(diagonal)
    none = (0,) * len(leading)
    return e.pad(diagonal, (*none, 0), (*none, columns - size))


def _as_columns(e: Emitter, diagonal: SSAValue) -> SSAValue:
    """[..., n] as [..., 1, n]: element i stands in every row of column i."""
    shape = shape_of(diagonal)
    return e.reshape(diagonal, (*shape[:-1], 1, shape[-1]))


def _on_diagonal(e: Emitter, rows: int, columns: int) -> SSAValue:
    """A condition [rows, columns], true where both positions are the same."""
    row, column = (e.emit(ops.ArangeOp(size, 0, 1, "int32")) for size in (rows, columns))
    return e.compare("EQ", e.reshape(row, (rows, 1)), e.reshape(column, (1, columns)))


def _require_main_diagonal(node: NodeContext, position: int) -> None:
    offsets = node.ints(position, "k")
    if any(offsets):
        raise RefusedError(Kind.USAGE, f"its diagonals k are {offsets}, expected the main diagonal, 0")


TABLE: Table = {
    **dict.fromkeys(("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3"), _diag),
    **dict.fromkeys(("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"), _diag_part),
    "DiagPart": _tensor_diag_part,
    **dict.fromkeys(("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"), _set_diag),
}
