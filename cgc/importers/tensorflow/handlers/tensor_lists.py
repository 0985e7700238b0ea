"""Lists of tensors and optionals, which loops and branches of TensorFlow pass on.

tf.TensorArray is such a list; tf.while_loop, tf.map_fn, tf.scan and recurrent layers collect results in
lists, and the gradient of a loop reads the values that each iteration put there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import cut
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Array, Shape
from cgc.importers.tensorflow.constant_folding import FOLD_LIMIT
from cgc.importers.tensorflow.node import (
    MISSING,
    Either,
    Missing,
    NodeContext,
    Optional,
    Table,
    TensorList,
    Value,
)


def _list(node: NodeContext, position: int = 0) -> TensorList:
    value = _any_list(node, position)
    if value.is_open:
        raise RefusedError(
            Kind.SHAPE,
            "the number of tensors in the list depends on the data, like the number of iterations; give the "
            "tf.TensorArray a size",
        )
    return value


def _any_list(node: NodeContext, position: int = 0) -> TensorList:
    value = node.inputs[position]
    if not isinstance(value, TensorList):
        raise RefusedError(Kind.USAGE, f"its input {node.op.inputs[position].name} is not a list of tensors")
    return value


def _new(node: NodeContext, items: list[Value]) -> TensorList:
    return TensorList(tuple(items), str(node.attr("element_dtype").name))


def _empty(node: NodeContext) -> TensorList:
    return _new(node, [])


def _reserve(node: NodeContext) -> TensorList:
    return _new(node, [None] * _number(node, 1, "number of elements"))


def _push_back(node: NodeContext) -> TensorList:
    items = _any_list(node)
    return items.put(len(items.items), node.inputs[1])


def _pop_back(node: NodeContext) -> tuple[Value, Value]:
    items = _any_list(node)
    last = len(items.items) - 1
    return replace(items, items=items.items[:-1]), _item(node, items, last, output=1)


def _get_item(node: NodeContext) -> Value:
    return _item(node, _list(node), _number(node, 1, "index"))


def _set_item(node: NodeContext) -> TensorList:
    return _list(node).put(_number(node, 1, "index"), node.inputs[2])


def _resize(node: NodeContext) -> TensorList:
    items, size = _list(node), _number(node, 1, "size")
    return TensorList((*items.items, *[None] * size)[:size], items.dtype)


def _length(node: NodeContext) -> Array:
    return np.asarray(len(_list(node).items), np.int32)


def _element_shape(node: NodeContext) -> Array:
    return np.asarray(_shape_of_elements(node, _list(node), 0), node.attr("shape_type").as_numpy_dtype)


def _stack(node: NodeContext) -> SSAValue | Array:
    items = _list(node)
    return _stack_items(node, items, range(len(items.items)))


def _gather(node: NodeContext) -> SSAValue | Array:
    return _stack_items(node, _list(node), node.ints(1, "indices"))


def _from_tensor(node: NodeContext) -> TensorList:
    return _new(node, _rows(node, 0))


def _scatter(node: NodeContext) -> TensorList:
    """Return a list with the rows of a tensor at given places."""
    size = node.ints(3, "number of elements")[0] if len(node.inputs) > 3 else -1
    rows, indices = _rows(node, 0), node.ints(1, "indices")
    return _scatter_items(_new(node, [None] * max(size, 0)), indices, rows)


def _scatter_into(node: NodeContext) -> TensorList:
    return _scatter_items(_list(node), node.ints(2, "indices"), _rows(node, 1))


def _split(node: NodeContext) -> TensorList:
    sizes = node.ints(2, "lengths")
    return _new(node, list(cut(node.emit, node.x(0), 0, sizes)))


def _concat(node: NodeContext) -> tuple[Value, Value]:
    """Return the items, concatenated along the first axis, and the length of each."""
    items = _list(node)
    parts = [node.as_value(_item(node, items, i)) for i in range(len(items.items))]
    lengths = np.asarray([shape_of(part)[0] for part in parts], np.int64)
    return (parts[0] if len(parts) == 1 else node.emit.emit(ops.ConcatOp(parts, 0))), lengths


def _number(node: NodeContext, position: int, what: str) -> int:
    (number,) = node.ints(position, what)
    return number


def _scatter_items(items: TensorList, indices: list[int], rows: list[Value]) -> TensorList:
    return reduce(lambda found, place: found.put(*place), zip(indices, rows, strict=True), items)


def _rows(node: NodeContext, position: int) -> list[Value]:
    known = node.known(position)
    if known is not None:
        return list(known)
    x = node.x(position)
    count, *rest = shape_of(x)
    return [node.emit.reshape(row, rest) for row in cut(node.emit, x, 0, [1] * count)]


def _stack_items(node: NodeContext, items: TensorList, indices: range | list[int]) -> SSAValue | Array:
    found = [_item(node, items, index, rank=1) for index in indices]
    arrays = [item for item in found if isinstance(item, np.ndarray)]
    if len(arrays) == len(found):
        if not arrays:
            shape = _shape_of_elements(node, items, 1)
            return np.zeros((0, *shape), node.op.outputs[0].dtype.as_numpy_dtype)
        if sum(array.size for array in arrays) <= FOLD_LIMIT:
            return np.stack(arrays)
    rows = [node.emit.reshape(x, (1, *shape_of(x))) for x in map(node.as_value, found)]
    return rows[0] if len(rows) == 1 else node.emit.emit(ops.ConcatOp(rows, 0))


def _item(node: NodeContext, items: TensorList, index: int, output: int = 0, rank: int = 0) -> Value:
    """Return an item; where nothing was put zeros, as TensorFlow reads there.

    `rank` says how many axes the output has before those of an item.
    """
    if not 0 <= index < len(items.items):
        raise RefusedError(Kind.USAGE, f"index {index} is out of range for {len(items.items)} tensors")
    item: Value = items.items[index]
    if item is not None:
        return item
    if items.dtype == "variant":
        return TensorList((), items.dtype)
    return node.emit.full(0, _shape_of_elements(node, items, rank, output), items.dtype)


def _shape_of_elements(node: NodeContext, items: TensorList, rank: int, output: int = 0) -> Shape:
    for item in items.items:
        if isinstance(item, SSAValue):
            return shape_of(item)
        if isinstance(item, np.ndarray):
            return tuple(item.shape)
    static = node.op.outputs[output].shape
    if static.rank is None or not static[rank:].is_fully_defined():
        raise RefusedError(
            Kind.SHAPE,
            "the list is empty before it, and the shape of its elements is open; give the "
            "tf.TensorArray its element_shape",
        )
    return tuple(static.as_list()[rank:])


def _zeros_like(node: NodeContext) -> Value:
    value = node.inputs[0]
    if not isinstance(value, TensorList):
        return value
    return TensorList(tuple(_zeros(node, item) for item in value.items), value.dtype)


def _zeros(node: NodeContext, item: Value) -> Value:
    if isinstance(item, SSAValue):
        return node.emit.like(0, item)
    return np.zeros_like(item) if isinstance(item, np.ndarray) else item


def _add_n(node: NodeContext) -> TensorList:
    """Return the sums of items; missing items add nothing."""
    lists = [_list(node, position) for position in range(len(node.inputs))]
    count = max(len(items.items) for items in lists)
    padded = [(*items.items, *[None] * (count - len(items.items))) for items in lists]
    sums: list[Value] = []
    for column in zip(*padded, strict=True):
        items = [item for item in column if item is not None]
        sums.append(
            reduce(lambda a, b: node.emit.add(node.as_value(a), node.as_value(b)), items) if items else None
        )
    return TensorList(tuple(sums), lists[0].dtype)


def _optional(node: NodeContext) -> Optional:
    return Optional(tuple(node.inputs))


def _missing(node: NodeContext) -> Missing:
    return MISSING


def _of_branch(node: NodeContext) -> Value:
    """Return the optional that the branch around this operation gave, where several branches gave one."""
    value = node.inputs[0]
    while isinstance(value, Either):
        branch = node.step.branches.get(value.selector)
        if branch is None:
            raise RefusedError(Kind.USAGE, "it uses a value of a branch outside of that branch")
        value = value.options[branch]
    return value


def _components(node: NodeContext) -> list[Value]:
    value = _of_branch(node)
    if not isinstance(value, Optional):
        raise RefusedError(Kind.USAGE, f"its input {node.op.inputs[0].name} is empty")
    return list(value.components)


def _has_value(node: NodeContext) -> Array:
    return np.asarray(isinstance(_of_branch(node), Optional))


TABLE: Table = {
    "EmptyTensorList": _empty,
    "TensorListReserve": _reserve,
    "TensorListPushBack": _push_back,
    "TensorListPopBack": _pop_back,
    "TensorListGetItem": _get_item,
    "TensorListSetItem": _set_item,
    "TensorListResize": _resize,
    "TensorListLength": _length,
    "TensorListElementShape": _element_shape,
    "TensorListStack": _stack,
    "TensorListGather": _gather,
    "TensorListFromTensor": _from_tensor,
    "TensorListScatter": _scatter,
    "TensorListScatterV2": _scatter,
    "TensorListScatterIntoExistingList": _scatter_into,
    "TensorListSplit": _split,
    "TensorListConcat": _concat,
    "TensorListConcatV2": _concat,
    "OptionalFromValue": _optional,
    "OptionalNone": _missing,
    "OptionalGetValue": _components,
    "OptionalHasValue": _has_value,
    # Functions for XLA return this instead of an empty optional.
    "FakeParam": _missing,
}

# Operations on tensors that take lists of them as well.
ON_LISTS: Table = {"ZerosLike": _zeros_like, "AddN": _add_n}
