"""Move images to channels last, for programs that write channels first.

PyTorch has images as `[samples, channels, height, width]`, convolutions and normalizations of CIRH have the
channels last. An importer puts transposes around these, and the ops between two of them (activations, sums
with a shortcut, concatenations) are left with channels first. The rule here moves the transposes to channels
first after such ops, where they meet their inverses. Without it each activation costs XLA two copies of an
image, and a tiny EfficientNet has 600 more ops.
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

# Of images. In sequences the same transpose exchanges tokens and features, as attention does.
_LEAST_RANK = 4

_ELEMENTWISE = (Elements.POINTWISE, Elements.CONVERTED)


def behind_images(op: CirhOp) -> Replacement:
    """`f(to_channels_first(x), ...)` -> `to_channels_first(f(x, ...))`, where the other operands allow it."""
    transposes = filter(None, map(_to_channels_first, op.operands))
    first = next(transposes, None)
    if first is None or len(op.results) != 1:
        return None
    order = first.permutation
    made: list[CirhOp] = []
    if op.TRAITS.elements in _ELEMENTWISE or isinstance(op, ops.ConcatOp):
        values = _all_last(op.operands, order, made)
        if values is None:
            return None
        made.append(_rebuilt(op, values, order))
    elif isinstance(op, ops.SliceOp):
        indices = (op.start_indices, op.limit_indices, op.strides)
        made.append(ops.SliceOp(first.x, *(_last(order, index) for index in indices)))
    elif isinstance(op, ops.PadOp):
        made.append(ops.PadOp(first.x, op.value, _last(order, op.low), _last(order, op.high)))
    else:
        return None
    return *made, ops.TransposeOp(made[-1].results[0], order)


def _rebuilt(op: CirhOp, values: Sequence[SSAValue], order: Sequence[int]) -> CirhOp:
    """Return the elementwise op or the joint for operands with channels last."""
    if isinstance(op, ops.ConcatOp):
        return ops.ConcatOp(values, order[op.axis])
    result = tensor_of(op.results[0])
    kind = tensor_type(_last(order, result.get_shape()), result.element_type)
    return type(op).create(operands=values, result_types=[kind], properties=dict(op.properties))


def before_repeating(op: ops.DivOp) -> Replacement:
    """`[n, c, 1, 1] -> [n, c, h, w], / constant` -> divide first: the gradient of a mean of images."""
    repeat, splat = op.lhs.owner, constant_splat(op.rhs)
    if splat is None or not isinstance(repeat, ops.BroadcastInDimOp):
        return None
    shape = shape_of(repeat.x)
    if len(shape) < _LEAST_RANK or len(shape) != len(shape_of(op.result)) or {*shape[2:]} != {1}:
        return None
    divisor = ops.ConstOp.splat(splat, tensor_of(repeat.x))
    divided = ops.DivOp(repeat.x, divisor)
    return divisor, divided, ops.BroadcastInDimOp(divided, shape_of(op.result), repeat.broadcast_dimensions)


def _to_channels_first(value: SSAValue) -> ops.TransposeOp | None:
    """Return the transpose that takes the channels of images to the front, None if the value is no such."""
    owner = value.owner
    return owner if isinstance(owner, ops.TransposeOp) and brings_channels_first(owner) else None


def brings_channels_first(op: ops.TransposeOp) -> bool:
    """Return whether a transpose takes the channels of images, which were last, to the front."""
    rank = len(op.permutation)
    return rank >= _LEAST_RANK and op.permutation == (0, rank - 1, *range(1, rank - 1))


def _last(order: Sequence[int], items: Sequence[int]) -> list[int]:
    """Reorder items of dimensions with channels first for the same dimensions with channels last."""
    moved = [0] * len(items)
    for dim, item in zip(order, items, strict=True):
        moved[dim] = item
    return moved


def _all_last(
    operands: Sequence[SSAValue], order: Sequence[int], made: list[CirhOp]
) -> list[SSAValue] | None:
    """Return operands with channels last; None unless all are transposes of such or repeat few elements.

    Args:
        operands: With channels first, or scalars.
        order: The permutation that takes the channels to the front.
        made: Receives the ops that repeat elements in the other order; empty where the result is None.
    """
    values = []
    for operand in operands:
        transpose = _to_channels_first(operand)
        if transpose is not None:
            values.append(transpose.x)
        elif not shape_of(operand):
            values.append(operand)
        elif repeated := _repeated(operand, order):
            made += repeated
            values.append(repeated[-1].results[0])
        else:
            while made:  # else they would count as readers of their operands
                made.pop().erase()
            return None
    return values


def _repeated(value: SSAValue, order: Sequence[int]) -> list[CirhOp]:
    """Return ops that repeat the elements of a constant or a broadcast with channels last; or none."""
    owner, shape = value.owner, shape_of(value)
    if len(shape) != len(order):
        return []
    wanted = tensor_type(_last(order, shape), tensor_of(value).element_type)
    if isinstance(owner, ops.ConstOp):
        splat = owner.splat_value()
        return [] if splat is None else [ops.ConstOp.splat(splat, wanted)]
    if not isinstance(owner, ops.BroadcastInDimOp):
        return []
    sizes = shape_of(owner.x)
    dims = zip(sizes, owner.broadcast_dimensions, strict=True)
    places = [order[dim] for size, dim in dims if size != 1]
    if places != sorted(places):
        return []
    if len(places) == len(sizes):
        return [ops.BroadcastInDimOp(owner.x, wanted.get_shape(), places)]
    fewer = ops.ReshapeOp(owner.x, [size for size in sizes if size != 1])
    return [fewer, ops.BroadcastInDimOp(fewer, wanted.get_shape(), places)]
