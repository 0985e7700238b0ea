"""Convert ops on images from channels first to channels last.

Images of PyTorch are `[samples, channels, height, width]`; convolutions and normalizations of CIRH have the
channels last. An importer adds transposes around these, so that the ops between two of them (activations,
residual sums, concatenations) have channels first. The rules here move transposes to channels first after
such ops, where they meet their inverses. Without them, each activation costs XLA two copies of an image, and
a tiny EfficientNet has 600 more ops.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.traits import Elements
from cgc.cirh.types import shape_of, tensor_of, tensor_type
from cgc.passes.constant_fold import constant_splat
from cgc.passes.rewriting import Replacement

# Minimum rank of images. Of sequences, the same transpose swaps tokens and features, as in attention.
_MIN_RANK = 4

_ELEMENTWISE = (Elements.POINTWISE, Elements.CONVERTED)


def sink_channels_first(op: CirhOp) -> Replacement:
    """`f(to_channels_first(x), ...)` -> `to_channels_first(f(x, ...))`, if the other operands allow it."""
    transposes = filter(None, map(_to_channels_first, op.operands))
    first = next(transposes, None)
    if first is None or len(op.results) != 1:
        return None
    order = first.permutation
    new_ops: list[CirhOp] = []
    if op.TRAITS.elements in _ELEMENTWISE or isinstance(op, ops.ConcatOp):
        values = _operands_to_channels_last(op.operands, order, new_ops)
        if values is None:
            return None
        new_ops.append(_rebuild(op, values, order))
    elif isinstance(op, ops.SliceOp):
        indices = (op.start_indices, op.limit_indices, op.strides)
        new_ops.append(ops.SliceOp(first.x, *(_to_channels_last(order, index) for index in indices)))
    elif isinstance(op, ops.PadOp):
        new_ops.append(
            ops.PadOp(first.x, op.value, _to_channels_last(order, op.low), _to_channels_last(order, op.high))
        )
    else:
        return None
    return *new_ops, ops.TransposeOp(new_ops[-1].results[0], order)


def _rebuild(op: CirhOp, values: Sequence[SSAValue], order: Sequence[int]) -> CirhOp:
    """Return the elementwise op or the concatenation of operands with channels last."""
    if isinstance(op, ops.ConcatOp):
        return ops.ConcatOp(values, order[op.axis])
    result = tensor_of(op.results[0])
    kind = tensor_type(_to_channels_last(order, result.get_shape()), result.element_type)
    return type(op).create(operands=values, result_types=[kind], properties=dict(op.properties))


def divide_before_broadcast(op: ops.DivOp) -> Replacement:
    """Divide by a constant before `[n, c, 1, 1] -> [n, c, h, w]`, as in the gradient of a mean of images."""
    repeat, splat = op.lhs.owner, constant_splat(op.rhs)
    if splat is None or not isinstance(repeat, ops.BroadcastInDimOp):
        return None
    shape = shape_of(repeat.x)
    if len(shape) < _MIN_RANK or len(shape) != len(shape_of(op.result)) or {*shape[2:]} != {1}:
        return None
    divisor = ops.ConstOp.splat(splat, tensor_of(repeat.x))
    divided = ops.DivOp(repeat.x, divisor)
    return divisor, divided, ops.BroadcastInDimOp(divided, shape_of(op.result), repeat.broadcast_dimensions)


def _to_channels_first(value: SSAValue) -> ops.TransposeOp | None:
    """Return the transpose to channels first that a value is the result of; None for other values."""
    owner = value.owner
    return owner if isinstance(owner, ops.TransposeOp) and brings_channels_first(owner) else None


def brings_channels_first(op: ops.TransposeOp) -> bool:
    """Return True if a transpose moves the channels of images from the last position to the second."""
    rank = len(op.permutation)
    return rank >= _MIN_RANK and op.permutation == (0, rank - 1, *range(1, rank - 1))


def _to_channels_last(order: Sequence[int], items: Sequence[int]) -> list[int]:
    """Reorder one item per dimension from channels first to channels last."""
    reordered = [0] * len(items)
    for dim, item in zip(order, items, strict=True):
        reordered[dim] = item
    return reordered


def _operands_to_channels_last(
    operands: Sequence[SSAValue], order: Sequence[int], new_ops: list[CirhOp]
) -> list[SSAValue] | None:
    """Return operands with channels last; None unless all are transposes, constants or broadcasts.

    Args:
        operands: With channels first, or scalars.
        order: The permutation to channels first.
        new_ops: Receives the new constants and broadcasts; empty if the result is None.
    """
    values = []
    for operand in operands:
        transpose = _to_channels_first(operand)
        if transpose is not None:
            values.append(transpose.x)
        elif not shape_of(operand):
            values.append(operand)
        elif broadcast := _broadcast_to_channels_last(operand, order):
            new_ops += broadcast
            values.append(broadcast[-1].results[0])
        else:
            while new_ops:  # otherwise they would count as users of their operands
                new_ops.pop().erase()
            return None
    return values


def _broadcast_to_channels_last(value: SSAValue, order: Sequence[int]) -> list[CirhOp]:
    """Return ops that compute a splat or a broadcast with channels last; empty for other values."""
    owner, shape = value.owner, shape_of(value)
    if len(shape) != len(order):
        return []
    target_type = tensor_type(_to_channels_last(order, shape), tensor_of(value).element_type)
    if isinstance(owner, ops.ConstOp):
        splat = owner.splat_value()
        return [] if splat is None else [ops.ConstOp.splat(splat, target_type)]
    if not isinstance(owner, ops.BroadcastInDimOp):
        return []
    sizes = shape_of(owner.x)
    dims = zip(sizes, owner.broadcast_dimensions, strict=True)
    target_dims = [order[dim] for size, dim in dims if size != 1]
    if target_dims != sorted(target_dims):
        return []
    if len(target_dims) == len(sizes):
        return [ops.BroadcastInDimOp(owner.x, target_type.get_shape(), target_dims)]
    squeezed = ops.ReshapeOp(owner.x, [size for size in sizes if size != 1])
    return [squeezed, ops.BroadcastInDimOp(squeezed, target_type.get_shape(), target_dims)]
