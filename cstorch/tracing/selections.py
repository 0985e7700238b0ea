"""Rows that a mask of values selects: `h[m].mean()`, `z[m] = t[m]`, `loss(head(h[m]), labels[m])`.

The number of selected rows depends on values, and sizes in a step must not. So a selection keeps all rows of
the tensor, each at its place, and a mask of those that count. Row-wise functions work on all rows; reductions
and writes leave the others out. Rows that do not count hold a copy of the first one that does, so that no
function is applied to numbers outside of its domain. All other functions are refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from cstorch.errors import SelectionError
from cstorch.tracing.device import require
from cstorch.tracing.places import user_line
from cstorch.tracing.values import leaves, map_leaves

Keywords = Mapping[str, Any]


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_SCATTERS = _names("index_add index_reduce scatter scatter_add scatter_reduce")

_PROPERTIES = _names(
    "device dim dtype grad grad_fn is_complex is_cuda is_floating_point is_leaf is_meta is_nested"
    " is_quantized is_sparse layout ndim register_hook requires_grad retain_grad"
)
_OPERATORS = {
    "truediv": "div",
    "rtruediv": "div",
    "itruediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "iand": "bitwise_and",
    "or": "bitwise_or",
    "ior": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
}
_ELEMENTWISE = _names(
    "bfloat16 bool contiguous data detach divide double dropout empty_like float floor_divide full_like half"
    " hardswish int logsigmoid long multiply negative ones_like rand_like randn_like requires_grad_ softsign"
    " subtract to type type_as zeros_like"
)
"""Elementwise functions without PyTorch's tag for them."""
_NOT_ELEMENTWISE = _names("equal frexp max min")
"""Functions with that tag that are not only elementwise."""
_ROWWISE = _names(
    "cosine_similarity embedding layer_norm linear normalize one_hot pairwise_distance rms_norm"
)
_BY_DIM = _names(
    "argmax argmin argsort cat chunk cummax cummin cumprod cumsum flatten flip gather log_softmax movedim"
    " narrow select softmax sort split squeeze stack topk transpose unbind unflatten unsqueeze"
)
_OF_SEVERAL_DIMS = _names("flip movedim transpose")
_DIM_AT = {"chunk": 2, "norm": 2, "split": 2, "topk": 2}
"""Position of the dimension among the arguments, if it is not the second."""
_DIM_UNLESS_GIVEN = {
    **dict.fromkeys(("cat", "chunk", "split", "stack", "unbind"), 0),
    **dict.fromkeys(("argsort", "sort", "topk"), -1),
}
_OF_PAIRS = _names("cosine_similarity pairwise_distance")
_BY_DEFAULT = _names("cosine_similarity normalize")


class Part(NamedTuple):
    """The part of a tensor that a selection is.

    Attributes:
        whole: equal for tensors that are split at the same places.
        number: number of the part, from 0.
        parts: number of parts.
    """

    whole: Any
    number: int
    parts: int


class Rows:
    """The rows of a selection that count.

    Attributes:
        mask: True for rows that count, of one dimension.
        key: equal for masks of equal values.
        part: the part that the rows are, if `torch.cat` of the parts is a whole tensor; None for other rows.
        inner: True if the rows are those of the second dimension, as in `edges[:, mask]` and
            `x[None, places]`.
        least: number of rows that always count, as those of tensors that are joined with selected rows.
    """

    def __init__(
        self, mask: torch.Tensor, key: Any, inner: bool = False, part: Part | None = None, least: int = 0
    ) -> None:
        self.mask, self.key, self.inner, self.part, self.least = mask, key, inner, part, least

    def transpose(self) -> Rows:
        """Return the same rows of the second dimension instead of the first, or the other way round."""
        return Rows(self.mask, self.key, not self.inner, self.part, self.least)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask with as many dimensions as a tensor."""
        return self.mask.reshape(-1, *(1,) * (tensor.dim() - 1))

    def fill(self, tensor: torch.Tensor, value: Any) -> torch.Tensor:
        """Return a tensor with a number in the rows that do not count."""
        return torch.where(
            self.broadcast(tensor), tensor, torch.full((), value, dtype=tensor.dtype, device=tensor.device)
        )

    def count(self) -> torch.Tensor:
        """Return the number of rows that count."""
        return self.mask.sum()


def rows_of(tensor: Any) -> Rows | None:
    """Return the rows of a tensor that count; None if it is no selection."""
    return getattr(tensor, "selected", None)


def select(tensor: torch.Tensor, rows: Rows, dimensions: int) -> torch.Tensor:
    """Select rows of a tensor whose first dimensions are flattened into one."""
    joined = tensor.reshape(-1, *tensor.shape[dimensions:])
    first = joined.detach().index_select(0, rows.mask.int().argmax().reshape(1))
    empty = 0.5 if joined.is_floating_point() else 0  # a half is in the domain of most functions
    filler = torch.where(
        rows.mask.any(), first, torch.full((), empty, dtype=first.dtype, device=first.device)
    )
    return tag(torch.where(rows.broadcast(joined), joined, filler), rows)


def places(rows: Rows, shape: Sequence[int], device: Any) -> list[torch.Tensor]:
    """Return an index for each dimension of a tensor of a shape, at the rows that count."""
    numbers = torch.arange(math.prod(shape), device=device)
    found = []
    for dimension, size in enumerate(shape):
        below = math.prod(shape[dimension + 1 :])
        found.append(tag(numbers.div(below, rounding_mode="floor").remainder(size), rows))
    return found


def scatter_rows(mask: torch.Tensor, source: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """Return a tensor of the shape of a mask with the rows of `source`, in order, where the mask is true.

    Args:
        mask: the same for all elements of a row.
        source: the elements of the rows, in order.
        rows: in the mask.
        width: elements of a row.
    """
    return _spread(source.reshape(-1, width), mask.reshape(rows, width)[:, 0]).reshape(mask.shape)


def _spread(given: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Place rows in order where a mask is true; copies of them elsewhere."""
    return given.index_select(0, (mask.int().cumsum(0) - 1).clamp(0, given.size(0) - 1))


def tag(found: Any, rows: Rows | None) -> Any:
    """Mark results as selections of rows; None marks them as whole."""

    def mark(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            x.selected = rows
        return x

    if isinstance(found, tuple) and type(found) is not tuple:  # a named tuple, as `max(dim)` returns
        for field in found:
            mark(field)
        return found
    return map_leaves(mark, found) if type(found) in (tuple, list) else mark(found)


# Functions of selections


def apply(func: Any, name: str, args: tuple[Any, ...], kwargs: Keywords, in_place: bool = False) -> Any:
    """Apply a function of PyTorch to arguments of which some are selections.

    Args:
        func: takes selections as tensors like all others.
        name: name of the function, as `name_of` returns it.
        args: the positional arguments.
        kwargs: the keyword arguments.
        in_place: True if it writes into its first argument.

    Raises:
        SelectionError: it has no meaning for an unknown number of rows.
    """
    given = [x for x in leaves((list(args), dict(kwargs))) if rows_of(x) is not None]
    rows = rows_of(given[0])
    assert rows is not None
    if name in _PROPERTIES:
        return func(*args, **kwargs)
    if any(x.selected.inner for x in given):
        return _apply_inner(func, name, args, kwargs, given)
    if name in _SCATTERS:
        return _scatter(func, name, args, kwargs, in_place)
    if name == "cat" and _reduced_dims(name, args, kwargs, given[0].dim()) == {0}:
        return _concatenate(args[0])
    if any(rows_of(x).key != rows.key for x in given):  # type: ignore[union-attr]
        raise SelectionError(f"{name}() of selections by different masks", user_line())
    handler = _HANDLERS.get(name)
    if handler is not None:
        return handler(func, rows, args, kwargs)
    reduced = (
        _reduced_dims(name, args, kwargs, given[0].dim()) if name in _REDUCTIONS or name in _BY_DIM else None
    )
    if name in _REDUCTIONS and reduced is not None and 0 in reduced:
        return _REDUCTIONS[name](func, rows, args, kwargs, reduced)
    by_row = (
        _is_aligned(given, args, kwargs)
        if _is_elementwise(name)
        else name in _ROWWISE
        and len(given) == (2 if name in _OF_PAIRS else 1)
        and given[0] is args[0]
        and (name not in _BY_DEFAULT or (len(args) < 3 and kwargs.get("dim", 1) not in (0, -args[0].dim())))
    )
    if by_row or (reduced is not None and 0 not in reduced and len(given) == _count_tensors(args, kwargs)):
        return tag(func(*args, **kwargs), rows)
    count = _count_of_others(given, args, kwargs) if _is_elementwise(name) else None
    if count is not None and in_place and rows_of(args[0]) is not None:
        _require_count(rows, count)
        rank = args[0].dim()
        return func(args[0], *_align(args[1:], rows, rank), **_align(kwargs, rows, rank))
    if count is not None:
        return func(*_make_dense(args, count), **_make_dense(kwargs, count))
    raise SelectionError(f"{name}() of a selection", user_line())


@cache
def _is_elementwise(name: str) -> bool:
    """Return True if each element of a result depends only on those of the operands at its place."""
    operation = None if name in _NOT_ELEMENTWISE else getattr(torch.ops.aten, name, None)
    overloads = () if operation is None else operation.overloads()
    pointwise = (torch.Tag.pointwise in getattr(operation, overload).tags for overload in overloads)
    return name in _ELEMENTWISE or any(pointwise)


def _count_tensors(args: tuple[Any, ...], kwargs: Keywords) -> int:
    return sum(isinstance(x, torch.Tensor) for x in leaves((list(args), dict(kwargs))))


def name_of(func: Any) -> str:
    """Return the name of a function: the same for functions, methods, operators and in-place ones."""
    name: str = func.__name__
    if name == "__get__":
        return f"{func.__self__.__name__}"
    if name.startswith("__"):
        name = name.strip("_")
        name = _OPERATORS.get(name, name)
        return name[1:] if name[:1] in "ri" and _is_elementwise(name[1:]) else name
    return name if name.startswith("_") else name.rstrip("_")


def writes_in_place(name: str) -> bool:
    """Return True if a function of this name writes into its first argument."""
    return name.startswith("__i") and name != "__invert__" if name.startswith("__") else name.endswith("_")


def _is_aligned(given: Sequence[torch.Tensor], args: Any, kwargs: Any) -> bool:
    """Return True if broadcasting pairs each selected row with the row of the same number."""
    rank = max(x.dim() for x in given)
    tensors = [x for x in leaves((list(args), dict(kwargs))) if isinstance(x, torch.Tensor)]
    return all(
        x.dim() == rank if rows_of(x) is not None else x.dim() < rank or (x.dim() == rank and x.size(0) == 1)
        for x in tensors
    )


def _count_of_others(given: Sequence[torch.Tensor], args: Any, kwargs: Any) -> int | None:
    """Return the number of rows of the whole tensors, which then is the number that count; else None."""
    rank = max(x.dim() for x in given)
    tensors = [x for x in leaves((list(args), dict(kwargs))) if isinstance(x, torch.Tensor)]
    whole = [x for x in tensors if rows_of(x) is None]
    counts = {x.size(0) for x in whole if x.dim() == rank} - {1}
    if len(counts) != 1 or any(x.dim() > rank for x in whole) or any(x.dim() < rank for x in given):
        return None
    return counts.pop()


def _make_dense(nest: Any, count: int) -> Any:
    """Replace the selections in a nest by tensors of the rows that count."""

    def dense(x: Any) -> Any:
        rows = rows_of(x)
        return x if rows is None else _compact(x, rows, (count, *x.shape[1:]))

    return map_leaves(dense, nest)


def _align(nest: Any, rows: Rows, rank: int) -> Any:
    """Spread the rows of the whole tensors of a rank in a nest to the places of those of a selection."""

    def align(x: Any) -> Any:
        is_dense = isinstance(x, torch.Tensor) and rows_of(x) is None and x.dim() == rank
        return _spread(x, rows.mask) if is_dense else x

    return map_leaves(align, nest)


def _reduced_dims(name: str, args: tuple[Any, ...], kwargs: Keywords, rank: int) -> set[int]:
    """Return the dimensions that a function works along; all of them if it is given none."""
    dims = next((kwargs[key] for key in ("dim", "dims", "axis", "start_dim") if key in kwargs), None)
    at = _DIM_AT.get(name, 1)
    if dims is None and len(args) > at:
        dims = args[at:] if name in _OF_SEVERAL_DIMS else args[at]
    if dims is None or isinstance(dims, bool | torch.Tensor):
        dims = _DIM_UNLESS_GIVEN.get(name)
    if dims is None:
        return set(range(rank))
    dims = dims if isinstance(dims, tuple | list) else (dims,)
    whole = rank + (name in ("unsqueeze", "stack"))
    return {dim + whole if dim < 0 else dim for dim in leaves(list(dims)) if isinstance(dim, int)}


def _apply_inner(
    func: Any, name: str, args: tuple[Any, ...], kwargs: Keywords, given: list[torch.Tensor]
) -> Any:
    """Apply a function to selections of rows of the second dimension."""
    x = given[0]
    rows = x.selected.transpose()
    dims = {0, 1} if name in ("T", "t") else _reduced_dims(name, args, kwargs, x.dim()) & {0, 1}
    if name in ("shape", "size") and kwargs.get("dim", args[1] if len(args) > 1 else None) in (0, -x.dim()):
        return x.size(0)
    if name in ("shape", "size"):
        first, *rest = _sizes(func, rows, (x.transpose(0, 1),), {})
        sizes = (x.size(0), first, *rest[1:])
        return sizes if len(args) + len(kwargs) == 1 else sizes[kwargs.get("dim", *args[1:])]
    if name in ("numel", "nelement"):
        return _numel(func, rows, (x.transpose(0, 1),), {})
    if name in ("reshape", "view") and x is args[0] and x.size(0) == 1:
        return apply(func, name, (tag(x.squeeze(0), rows), *args[1:]), kwargs)
    if name in ("T", "t", "transpose") and dims == {0, 1}:
        return tag(func(*args, **kwargs), rows)
    if name in ("select", "unbind") and dims == {0}:
        return tag(func(*args, **kwargs), rows)
    inner = all(rows_of(y) is None or rows_of(y).inner for y in leaves([*args]))  # type: ignore[union-attr]
    if name == "cat" and dims == {1} and inner:
        joined = _concatenate([tag(y.transpose(0, 1), rows_of(y)) for y in args[0]])
        found = rows_of(joined)
        assert found is not None
        return tag(joined.transpose(0, 1), found.transpose())
    if _count_tensors(args, kwargs) == 1 and (_is_elementwise(name) or (name == "flip" and dims == {0})):
        return tag(func(*args, **kwargs), x.selected)
    raise SelectionError(f"{name}() of a selection with a dimension before its rows", user_line())


def _scatter(func: Any, name: str, args: tuple[Any, ...], kwargs: Keywords, in_place: bool) -> Any:
    """Scatter values into indexed rows; rows that do not count change nothing."""
    named = [kwargs[key] for key in ("dim", "index", "source", "src", "value") if key in kwargs]
    target, dim, index, source, *others = (*args, *named)
    rows = rows_of(source) or rows_of(index)
    if rows is None or rows_of(target) is not None or dim % target.dim():
        raise SelectionError(f"{name}() along a dimension other than the first", user_line())
    if any(rows_of(x) is not None and rows_of(x).key != rows.key for x in (index, source)):  # type: ignore[union-attr]
        raise SelectionError(f"{name}() of selections by different masks", user_line())
    if rows_of(index) is None or (rows_of(source) is None and isinstance(source, torch.Tensor)):
        raise SelectionError(f"{name}() of a selection and of all rows", user_line())
    rest = {key: kwargs[key] for key in ("alpha", "include_self", "reduce") if key in kwargs}
    if name in ("index_add", "scatter_add"):
        return func(target, dim, index, rows.fill(source, 0), *others, **rest)
    after = target.size(0)  # an additional row takes the values that do not count
    place = torch.where(rows.broadcast(index), index, torch.full((), after, device=index.device))
    longer = torch.cat([target, target[:1]])
    found = func(longer, dim, place, source, *others, **rest)[:after]
    return target.copy_(found) if in_place else found


def _concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate selections and whole tensors; all parts of a tensor give the tensor."""
    selected = [(x, rows) for x in tensors if (rows := rows_of(x)) is not None]
    # All parts of a split, in order, are the tensor that was split.
    parts = [rows.part for _, rows in selected]
    first = parts[0]
    if first is not None and parts == [Part(first.whole, i, len(tensors)) for i in range(first.parts)]:
        found = tensors[0]
        for x, rows in selected[1:]:
            found = torch.where(rows.broadcast(x), x, found)
        return found
    masks = [
        torch.ones(x.size(0), dtype=torch.bool, device=x.device) if rows is None else rows.mask
        for x, rows in ((x, rows_of(x)) for x in tensors)
    ]
    keys = tuple(x.size(0) if rows is None else rows.key for x, rows in ((x, rows_of(x)) for x in tensors))
    least = sum(x.size(0) if rows is None else rows.least for x, rows in ((x, rows_of(x)) for x in tensors))
    return tag(torch.cat(list(tensors)), Rows(torch.cat(masks), keys, least=least))


# Reductions over rows


def _fill(value: Callable[[torch.dtype], Any], indices: bool = True) -> Any:
    """Return a reduction that fills the rows that do not count with its neutral number."""

    def reduce(func: Any, rows: Rows, args: Any, kwargs: Any, dims: set[int]) -> Any:
        if not indices and (len(args) > 1 or "dim" in kwargs):
            raise SelectionError(f"{func.__name__}() with indices of a selection", user_line())
        return func(rows.fill(args[0], value(args[0].dtype)), *args[1:], **kwargs)

    return reduce


def _lowest(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _elements(tensor: torch.Tensor, rows: Rows, dims: set[int]) -> torch.Tensor:
    """Return the number of elements that are reduced to one."""
    return rows.count() * math.prod(size for dim, size in enumerate(tensor.shape) if dim in dims and dim)


def _mean(func: Any, rows: Rows, args: Any, kwargs: Any, dims: set[int]) -> torch.Tensor:
    x, keep = args[0], bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    x = x if kwargs.get("dtype") is None else x.to(kwargs["dtype"])
    return rows.fill(x, 0).sum(sorted(dims), keepdim=keep) / _elements(x, rows, dims)


def _variance(func: Any, rows: Rows, args: Any, kwargs: Any, dims: set[int]) -> torch.Tensor:
    x = args[0]
    correction = kwargs.get(
        "correction",
        int(kwargs.get("unbiased", args[1] if len(args) == 2 and isinstance(args[1], bool) else True)),
    )
    whole = _elements(x, rows, dims)
    mean = rows.fill(x, 0).sum(sorted(dims), keepdim=True) / whole
    keep = bool(kwargs.get("keepdim", False))
    found = rows.fill((x - mean).square(), 0).sum(sorted(dims), keepdim=keep) / (whole - correction)
    return found.sqrt() if func.__name__ == "std" else found


def _zero(dtype: torch.dtype) -> Any:
    return 0


def _one(dtype: torch.dtype) -> Any:
    return 1


_REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "all": _fill(_one),
    "amax": _fill(_lowest),
    "amin": _fill(_highest),
    "any": _fill(_zero),
    "count_nonzero": _fill(_zero),
    "logsumexp": _fill(_lowest),
    "max": _fill(_lowest, indices=False),
    "mean": _mean,
    "min": _fill(_highest, indices=False),
    "norm": _fill(_zero),
    "prod": _fill(_one),
    "std": _variance,
    "sum": _fill(_zero),
    "var": _variance,
}


def _apply_loss(func: Any, rows: Rows, args: Any, kwargs: Any) -> torch.Tensor:
    """Compute a loss of each row, then the mean or sum over those that count."""
    labels = args[1] if len(args) > 1 else kwargs["target"]
    if len(args) > 2 or (rows_of(labels) is None and labels.numel() > 1) or rows_of(args[0]) is None:
        raise SelectionError(f"{func.__name__}() of a selection with other arguments", user_line())
    # The mean is over the rows that count, which PyTorch's own reduction does not know.
    how = kwargs.get("reduction", "mean")
    each = func(*args, **{**kwargs, "reduction": "none"})
    if how == "none":
        return tag(each, rows)
    total = rows.fill(each, 0).sum()
    if how == "sum":
        return total
    if func.__name__ in ("cross_entropy", "nll_loss") and not labels.is_floating_point():
        ignored = kwargs.get("ignore_index", -100)
        counts = (labels != ignored).to(each.dtype)
        if kwargs.get("weight") is not None:
            counts = counts * kwargs["weight"][labels.clamp(min=0)]
        return total / rows.fill(counts, 0).sum()
    return total / _elements(each, rows, set(range(each.dim())))


def _sizes(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Return sizes, of which that of the rows is a tensor."""
    count = rows.count()
    count.counts, count.least = rows, rows.least
    sizes = (count, *args[0].shape[1:])
    dim = kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else None)
    return sizes if dim is None else sizes[dim]


def make_sized(func: Any, sizes: tuple[Any, ...], args: tuple[Any, ...], kwargs: Keywords) -> Any:
    """Call a function that makes a tensor of a size, which may be that of a selection.

    Args:
        func: as `torch.ones`.
        sizes: the sizes, or a tuple of them as the only element.
        args: the other positional arguments.
        kwargs: the keyword arguments.
    """
    first, *rest = [*leaves([*sizes]), None]
    rows = getattr(first, "counts", None)
    if rows is None:
        return func(*sizes, *args, **kwargs)
    return tag(func((rows.mask.size(0), *rest[:-1]), *args, **kwargs), rows)


def _make_new(func: Any, rows: Rows, args: tuple[Any, ...], kwargs: Keywords) -> torch.Tensor:
    """`new_zeros` and its like, of the type and on the device of a selection."""
    x, *given = args
    sizes = tuple(given) + tuple(kwargs[key] for key in ("size",) if key in kwargs)
    whole = isinstance(sizes[0], int | torch.Tensor)
    rest = {key: value for key, value in kwargs.items() if key != "size"}
    return make_sized(
        lambda size, *others, **named: func(x, size, *others, **named),
        (sizes,) if whole else sizes[:1],
        () if whole else sizes[1:],
        rest,
    )


def _numel(func: Any, rows: Rows, args: Any, kwargs: Any) -> torch.Tensor:
    count = _elements(args[0], rows, set(range(args[0].dim())))
    count.least = rows.least * math.prod(args[0].shape[1:])
    return count


def answer_has_rows(name: str, args: tuple[Any, ...]) -> Any:
    """Answer whether a selection has rows, as `x.numel() == 0` asks, if it always has some.

    Args:
        name: name of the comparison.
        args: the operands.

    Returns:
        NotImplemented if the answer depends on values, and for other functions.
    """
    least = getattr(args[0], "least", 0) if len(args) == 2 and type(args[1]) is int and not args[1] else 0
    if name not in ("eq", "ge", "gt", "le", "lt", "ne") or not least:
        return NotImplemented
    return torch.tensor(getattr(operator, name)(least, 0))


def _matmul(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    left, right = args
    if rows_of(left) is None or left.dim() < 2 or (rows_of(right) is None and right.dim() > 2):
        raise SelectionError("a product with the rows of a selection", user_line())
    if (rows_of(right) is not None) != (right.dim() > 2):
        raise SelectionError("a product over the rows of a selection", user_line())
    return tag(func(left, right), rows)


def _reshape(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Reshape rows that stay whole, as `view(-1, ...)`, or into a shape of a known size.

    A known size, as in `x[mask].view(8, 16)`, determines how many rows count, which is checked in every step.
    """
    x, shape = args[0], args[1:]
    shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if shape and all(isinstance(size, int) and size > 0 for size in shape):
        return _compact(x, rows, shape)
    first, rest = (shape[0], shape[1:]) if shape else (None, ())
    whole = isinstance(first, torch.Tensor) or first == -1
    if (
        not whole
        or not all(isinstance(size, int) and size > 0 for size in rest)
        or math.prod(rest) != math.prod(x.shape[1:])
    ):
        raise SelectionError(f"{func.__name__}{tuple(shape)} of a selection", user_line())
    return tag(x.reshape(x.size(0), *rest), rows)


def _view_like(func: Any, rows: Rows, args: tuple[Any, ...], kwargs: Keywords) -> torch.Tensor:
    """View a selection in the shape of another one of the same rows."""
    x, other = (*args, *kwargs.values())
    if rows_of(x) is None or rows_of(other) is None or x.dim() != other.dim():
        raise SelectionError(f"{func.__name__}() of a selection and of all rows", user_line())
    return tag(func(x, other), rows)


def _select_at(func: Any, rows: Rows, args: tuple[Any, ...], kwargs: Keywords) -> torch.Tensor:
    """`index_select` at the places that a selection has."""
    x, dim, index = (*args, *(kwargs[key] for key in ("dim", "index") if key in kwargs))
    if rows_of(x) is not None or dim % x.dim():
        raise SelectionError("index_select() at places of a selection", user_line())
    return tag(func(x, dim, index), rows)


def _require_count(rows: Rows, count: int) -> None:
    error = f"the size of a tensor, {count}, must match the number of rows of a selection"
    require(rows.count() == count, RuntimeError(error))


def _compact(x: torch.Tensor, rows: Rows, shape: Sequence[int]) -> torch.Tensor:
    """Return the rows that count, in order, in a shape.

    Raises:
        SelectionError: the shape has no whole number of rows, or more rows than there are.
    """
    width = math.prod(x.shape[1:])
    count, rest = divmod(math.prod(shape), width)
    if rest or count > x.size(0):
        raise SelectionError(f"reshape{tuple(shape)} of a selection", user_line())
    _require_count(rows, count)
    order = torch.argsort(rows.mask.logical_not().int(), stable=True)
    return x.index_select(0, order[:count]).reshape(tuple(shape))


_LOSSES = _names(
    "binary_cross_entropy binary_cross_entropy_with_logits cross_entropy huber_loss l1_loss mse_loss nll_loss"
    " smooth_l1_loss soft_margin_loss"
)
_HANDLERS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(_LOSSES, _apply_loss),
    **dict.fromkeys(("shape", "size"), _sizes),
    **dict.fromkeys(("numel", "nelement"), _numel),
    **dict.fromkeys(("matmul", "bmm", "mm"), _matmul),
    **dict.fromkeys(("view", "reshape"), _reshape),
    **dict.fromkeys(("new_empty", "new_full", "new_ones", "new_zeros"), _make_new),
    **dict.fromkeys(("expand_as", "view_as"), _view_like),
    "index_select": _select_at,
}
