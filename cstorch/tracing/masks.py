"""Functions that make or consume selections of rows: masks as indices, `nonzero`, `split` by counts."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from cstorch.errors import SelectionError
from cstorch.tracing.device import require
from cstorch.tracing.places import user_line
from cstorch.tracing.selections import Part, Rows, places, rows_of, scatter_rows, select, tag
from cstorch.tracing.statements import asking_frame, nodes_at
from cstorch.tracing.values import leaves

Read: TypeAlias = Callable[[torch.Tensor], "torch.Tensor | None"]
"""Returns the elements of a tensor on this CPU if all steps share them."""
Key: TypeAlias = Callable[[torch.Tensor], Any]
"""Returns a key that is equal for tensors of equal values."""

_BASIC = (slice, int, type(None), type(Ellipsis))
_PLACES = ("nonzero", "argwhere")

PLACING = (
    *(getattr(owner, name) for owner in (torch, torch.Tensor) for name in _PLACES),
    *(
        getattr(owner, name)
        for owner in (torch, torch.Tensor)
        for name in ("masked_select", "masked_scatter")
    ),
    torch.Tensor.masked_scatter_,
)
"""Functions that `find_places` computes; `torch.where` of one argument is one too."""
SPLITTING = frozenset(
    {torch.split, torch.Tensor.split, torch.split_with_sizes, torch.Tensor.split_with_sizes}
)
"""Functions that `parts_of` computes."""
_MOST_PARTS = 1024


def index_by_values(func: Any, args: tuple[Any, ...], read: Read, key: Key) -> Any:
    """Compute `x[index]` or `x[index] = value` with masks, or with the places of a selection.

    Args:
        func: `__getitem__` or `__setitem__`, for whole tensors.
        args: the arguments of the function.
        read: reads masks.
        key: returns the keys of masks.

    Returns:
        NotImplemented if no index is a mask whose values only a step knows.

    Raises:
        SelectionError: a mask is combined with other indices.
    """
    target, given, *value = args
    index = (
        tuple(_resolve_mask(i, read) for i in given)
        if isinstance(given, tuple)
        else (_resolve_mask(given, read),)
    )
    index = tuple(part for i in index for part in (i if isinstance(i, tuple) else (i,)))
    masks = [i for i in index if _is_mask(i)]
    if masks:
        mask, *rest = index
        if len(index) == 2 and mask in (slice(None), ...) and masks[0].dim() == 1 and target.dim() == 2:
            return _index_columns(func, target, masks[0], value, read, key)
        if mask is not masks[0] or not all(isinstance(i, _BASIC) for i in rest):
            raise SelectionError("an index that combines a mask with other indices", user_line())
        outer = rows_of(target)
        within = rows_of(mask)
        if outer is not None and (within is None or (value and within.key != outer.key)):
            raise SelectionError("a mask that selects from a selection", user_line())
        rows = Rows(mask.reshape(-1) if outer is None else mask.logical_and(outer.mask), key(mask))
        if value:
            _write(
                target[(*(slice(None),) * mask.dim(), *rest)] if rest else target, rows, mask.dim(), value[0]
            )
            return None
        found = select(target, rows, mask.dim())
        return tag(found[(slice(None), *rest)], rows) if rest else found
    by_places = [i for i in index if rows_of(i) is not None]
    if by_places and index[0] is None and not value:
        found = index_by_values(func, (target, index[1:]), read, key)
        below = rows_of(found)
        assert below is not None
        return tag(found.unsqueeze(0), below.transpose())
    if by_places:
        return _index_at_places(func, target, index, value)
    if (whole := rows_of(target)) is not None:
        is_first = not isinstance(index[0], torch.Tensor) and all(i == slice(None) for i in index[1:])
        if whole.inner and not value and is_first:
            return tag(func(target, index), whole.transpose() if isinstance(index[0], int) else whole)
        if whole.inner or value or index[0] != slice(None) or not all(isinstance(i, _BASIC) for i in index):
            raise SelectionError("an index of a selection by row number", user_line())
        return tag(target[index], whole)
    if any(rows_of(x) is not None for x in value):
        raise SelectionError("a write of a selection with an index other than its mask", user_line())
    return func(target, index if isinstance(given, tuple) or len(index) > 1 else index[0], *value)


def _index_columns(
    func: Any, target: torch.Tensor, mask: torch.Tensor, value: list[Any], read: Read, key: Key
) -> Any:
    """Compute `x[:, mask]` of a matrix, or write to it."""
    outer = rows_of(target)
    if (outer is not None and not outer.inner) or any(isinstance(x, torch.Tensor) and x.dim() for x in value):
        raise SelectionError("an index that combines a mask with other indices", user_line())
    turned = tag(target.transpose(0, 1), None if outer is None else outer.transpose())
    found = index_by_values(func, (turned, mask, *value), read, key)
    if value:
        return None
    rows = rows_of(found)
    assert rows is not None
    return tag(found.transpose(0, 1), rows.transpose())


def is_by_values(args: tuple[Any, ...]) -> bool:
    """Return True if an index contains a mask, or places of a selection."""
    return any(rows_of(x) is not None for x in (args[0], *args[2:])) or any(
        isinstance(i, torch.Tensor) and (i.dtype in (torch.bool, torch.uint8) or rows_of(i) is not None)
        for i in leaves(list(args[1]) if isinstance(args[1], tuple) else [args[1]])
    )


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _resolve_mask(index: Any, read: Read) -> Any:
    """Replace a mask that all steps share by the places where it is true."""
    if not _is_mask(index) or rows_of(index) is not None:
        return index
    elements = read(index)
    return index if elements is None else tuple(elements.nonzero(as_tuple=True))


def _index_at_places(func: Any, target: torch.Tensor, index: tuple[Any, ...], value: list[Any]) -> Any:
    count = sum(rows_of(i) is not None for i in index)
    rows = rows_of(index[0])
    others = index[count:]
    if (
        rows is None
        or rows_of(target) is not None
        or any(rows_of(i) is None or rows_of(i).key != rows.key for i in index[:count])  # type: ignore[union-attr]
        or not all(isinstance(i, _BASIC) for i in others)
    ):
        raise SelectionError("an index of places of a selection with other indices", user_line())
    if not value:
        return tag(func(target, index), rows)
    if others:
        raise SelectionError("a write to places of a selection and other indices", user_line())
    # Rows that do not count are written into an additional row at the end, which is dropped.
    place = torch.zeros_like(index[0])
    for size, part in zip(target.shape, index, strict=False):
        place = place * size + part
    lines = math.prod(target.shape[:count])
    joined = target.reshape(lines, *target.shape[count:])
    longer = torch.cat([joined, joined[:1]])
    given = value[0] if isinstance(value[0], torch.Tensor) else torch.full((), value[0], device=target.device)
    put = longer.index_put((torch.where(rows.mask, place, lines),), given.to(target.dtype))
    target.copy_(put[:lines].reshape(target.shape))
    return None


def _write(target: torch.Tensor, rows: Rows, dimensions: int, value: Any) -> None:
    """Compute `target[mask] = value`.

    Raises:
        SelectionError: the value is a selection by another mask.
    """
    mask = rows.mask.reshape(*target.shape[:dimensions], *(1,) * (target.dim() - dimensions))
    if not isinstance(value, torch.Tensor):
        target.masked_fill_(mask, value)
        return
    other = rows_of(value)
    if other is not None:
        if other.key != rows.key:
            raise SelectionError("a write of a selection with another mask", user_line())
        value = value.reshape(target.shape)
    elif value.dim() > target.dim() - dimensions and value.size(0) != 1:
        lines = math.prod(target.shape[:dimensions])
        error = f"shape mismatch: the value has {value.size(0)} rows, and the mask selects a different number"
        require(rows.count() == value.size(0), ValueError(error))
        value = scatter_rows(mask.expand(target.shape), value, lines, math.prod(target.shape[dimensions:]))
    target.copy_(torch.where(mask, value.to(target.dtype), target))


def find_places(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], read: Read, key: Key) -> Any:
    """Compute `nonzero`, `argwhere`, `where(mask)`, `masked_select` or `masked_scatter`.

    Args:
        name: the name of the function.
        args: the positional arguments.
        kwargs: the keyword arguments.
        read: reads masks.
        key: returns the keys of masks.
    """
    tensor, *others = (*args, *kwargs.values()) if name.startswith("masked") else args
    if name.startswith("masked_select"):
        x, mask = torch.broadcast_tensors(tensor, others[0])
        return select(x, Rows(mask.reshape(-1), key(others[0])), x.dim())
    if name.startswith("masked_scatter"):
        return _scatter(tensor, others[0], others[1], key, in_place=name.endswith("_"))
    elements = read(tensor)
    as_tuple = name == "where" or bool(kwargs.get("as_tuple"))
    if elements is not None:
        known = elements.nonzero().to(tensor.device)
        return known.unbind(1) if as_tuple else known
    if rows_of(tensor) is not None:
        raise SelectionError("nonzero() of a selection", user_line())
    if not tensor.dim():
        raise SelectionError("nonzero() of a scalar", user_line())
    rows = Rows((tensor != 0).reshape(-1), key(tensor))
    found = places(rows, tensor.shape, tensor.device)
    return tuple(found) if as_tuple else tag(torch.stack(found, 1), rows)


def _scatter(
    target: torch.Tensor, mask: torch.Tensor, source: torch.Tensor, key: Key, in_place: bool
) -> torch.Tensor:
    rows = rows_of(source)
    if rows_of(target) is not None or (rows is not None and rows.key != key(mask)):
        raise SelectionError("masked_scatter() of a selection with another mask", user_line())
    # If the mask is constant along the last dimensions, whole rows are scattered instead of single elements.
    shape = torch.broadcast_shapes(target.shape, mask.shape)
    aligned = mask.reshape(*(1,) * (len(shape) - mask.dim()), *mask.shape)
    inner = len(shape)
    while inner and (aligned.size(inner - 1) == 1 or aligned.stride(inner - 1) == 0):
        inner -= 1  # the mask is the same for all elements of a row
    width = math.prod(shape[inner:])
    wide = mask.expand(shape)
    if source.numel() % width:
        width = 1
    if rows is not None:  # the source has all rows at their places
        found = torch.where(wide, source.reshape(shape).to(target.dtype), target)
        return target.copy_(found) if in_place else found
    error = f"masked_scatter: the source has {source.numel()} elements, fewer than the mask is true for"
    require(wide.sum() <= source.numel(), RuntimeError(error))
    given = scatter_rows(wide, source, math.prod(shape) // width, width)
    found = torch.where(wide, given.to(target.dtype), target)
    return target.copy_(found) if in_place else found


def sizes_of(counts: torch.Tensor) -> Any:
    """Answer `counts.tolist()` if a program names the list or calls `split` with it.

    Args:
        counts: A tensor without a value.

    Returns:
        The tensors of the list. They have no values either, so only `split` can read them.
        NotImplemented if the program does something else with the list.
    """
    frame = asking_frame()
    if frame is None or counts.dim() != 1 or counts.numel() > _MOST_PARTS:
        return NotImplemented
    if counts.is_floating_point() or counts.dtype == torch.bool:
        return NotImplemented
    around = [node for node in nodes_at(frame) if not isinstance(node, ast.Tuple | ast.List)]
    if len(around) < 2 or not isinstance(around[0], ast.Call):
        return NotImplemented
    user = around[1]
    splits = isinstance(user, ast.Call) and ast.unparse(user.func).rpartition(".")[2] == "split"
    return list(counts.unbind()) if splits or isinstance(user, ast.Assign) else NotImplemented


def parts_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Callable[[torch.Tensor], Any]
) -> tuple[torch.Tensor, ...]:
    """Compute `torch.split` along the first dimension by sizes that are tensors.

    Args:
        args: The arguments of the function.
        kwargs: The keyword arguments.
        key: Returns a key that is equal for tensors of equal values.

    Returns:
        NotImplemented for sizes that are numbers, and along other dimensions.
    """
    # Each part is a selection of rows of the tensor; `torch.cat` of all of them, in order, is the tensor.
    x, *others = (*args, *(kwargs[name] for name in ("tensor",) if name in kwargs))
    sizes = others[0] if others else kwargs.get("split_size", kwargs.get("split_sizes"))
    dim = others[1] if len(others) > 1 else kwargs.get("dim", 0)
    listed = isinstance(sizes, list | tuple) and any(isinstance(size, torch.Tensor) for size in sizes)
    if not listed or dim % x.dim():
        return NotImplemented
    counts = torch.stack([torch.as_tensor(size, device=x.device).reshape(()) for size in sizes])
    ends = counts.cumsum(0)
    error = f"split expects sizes that sum up to {x.size(0)}, the number of rows"
    require(ends[-1] == x.size(0), RuntimeError(error))
    whole = key(counts), x.size(0)
    places, found = torch.arange(x.size(0), device=x.device), []
    for number in range(len(sizes)):
        inside = places < ends[number]
        if number:
            inside = inside.logical_and(places >= ends[number - 1])
        part = Part(whole, number, len(sizes))
        found.append(select(x, Rows(inside, part, part=part), 1))
    return tuple(found)
