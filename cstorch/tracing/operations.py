"""Decompositions of ATen operations: those of the toolkit, and those that a program registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._decomp import get_decompositions

from cstorch.program import Program


def addbmm(
    x: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """`torch.addbmm`: x plus the sum of the products of a batch."""
    return beta * x + alpha * torch.bmm(batch1, batch2).sum(0)


def _signbit(x: torch.Tensor) -> torch.Tensor:
    """Return True where a number is negative, or minus zero."""
    if not x.is_floating_point():
        return x < 0
    return torch.logical_or(x < 0, torch.logical_and(x == 0, x.reciprocal() < 0))


def _ignoring_nan(extremum: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `torch.fmax` or `torch.fmin`: NaN only where both operands are."""

    def found(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if not (x.is_floating_point() or other.is_floating_point()):
            return extremum(x, other)
        return torch.where(x.isnan(), other, torch.where(other.isnan(), x, extremum(x, other)))

    return found


def fractional_max_pool(
    x: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pool over windows at random distances: return the largest elements and their places in the image.

    Args:
        x: `[N, C, *space]` or `[C, *space]`.
        kernel_size: size of the windows.
        output_size: number of windows along each axis.
        random_samples: `[N, C, dimensions]` from 0 to 1; those of two dimensions in reverse order.
    """
    dimensions = len(kernel_size)
    batched = x if x.dim() == dimensions + 2 else x.unsqueeze(0)
    count, channels = batched.shape[:2]
    flat: Any = 0
    for axis, (size, kernel, windows) in enumerate(
        zip(batched.shape[2:], kernel_size, output_size, strict=True)
    ):
        sample = random_samples[..., 1 - axis if dimensions == 2 else axis]
        places = _window_starts(sample, size, kernel, windows)[..., None]
        places = places + torch.arange(kernel, device=x.device)
        sides = [1] * (2 * dimensions)
        sides[axis], sides[dimensions + axis] = windows, kernel
        flat = flat * size + places.view(count, channels, *sides)
    flat = flat.flatten(2 + dimensions)
    values = batched.flatten(2).gather(2, flat.flatten(2)).view_as(flat)
    largest, which = values.max(-1)
    indices = flat.gather(-1, which.unsqueeze(-1)).squeeze(-1)
    return (largest, indices) if x.dim() == dimensions + 2 else (largest[0], indices[0])


def _window_starts(sample: torch.Tensor, size: int, kernel: int, windows: int) -> torch.Tensor:
    """Return starts `[..., windows]` for samples `[...]`; the last window ends at the end of the axis."""
    place = torch.arange(windows, device=sample.device)
    step = (size - kernel) / (windows - 1) if windows > 1 else 0.0
    drawn = sample.unsqueeze(-1)
    starts = ((place + drawn) * step).to(torch.int64) - (drawn * step).to(torch.int64)
    return torch.where(place == windows - 1, size - kernel, starts)


def _fractional_max_pool_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: torch.Tensor,
) -> torch.Tensor:
    begin = x.dim() - len(kernel_size)
    zeros = torch.zeros_like(x).flatten(begin)
    return zeros.scatter_add(-1, indices.flatten(begin), grad.flatten(begin)).view_as(x)


def _multinomial(
    x: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> torch.Tensor:
    """`torch.multinomial`: the places where a share divided by an exponential number is largest."""
    if replacement:
        x = x.unsqueeze(-2).expand(*x.shape[:-1], num_samples, x.shape[-1])
    drawn = x / -torch.log1p(-torch.rand(x.shape, device=x.device, dtype=x.dtype))
    return drawn.argmax(-1) if replacement else drawn.topk(num_samples).indices


def _nanmedian_along(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.nanmedian` along a dimension: the lower median of the numbers, and its place."""
    last = x.movedim(dim, -1) if x.dim() else x.reshape(1)
    valid = last.isnan().logical_not()
    ordered, places = torch.sort(torch.where(valid, last, torch.inf), dim=-1, stable=True)
    count = valid.sum(-1, keepdim=True)
    middle = (count - 1).clamp(min=0).div(2, rounding_mode="floor")
    value = torch.where(count > 0, ordered.gather(-1, middle), torch.nan)
    found = value.movedim(-1, dim), places.gather(-1, middle).movedim(-1, dim)
    if not x.dim():
        return found[0].reshape(()), found[1].reshape(())
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _nanmedian(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """`torch.nanmedian`, of all elements or along a dimension."""
    return _nanmedian_along(x.reshape(-1), 0)[0] if dim is None else _nanmedian_along(x, dim, keepdim)


def _nonzero_static(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """`torch.nonzero_static`: the first `size` places that are not zero."""
    flat = (x != 0).reshape(-1)
    order = torch.argsort(flat.logical_not().int(), stable=True)[:size]
    columns = []
    for dimension, length in enumerate(x.shape):
        below = math.prod(x.shape[dimension + 1 :])
        columns.append(order.div(below, rounding_mode="floor").remainder(length))
    rows = torch.stack(columns, 1)
    taken = torch.arange(rows.size(0), device=x.device) < flat.sum()
    rows = torch.where(taken[:, None], rows, fill_value)
    return torch.nn.functional.pad(rows, (0, 0, 0, size - rows.size(0)), value=fill_value)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
    """`torch.repeat_interleave` of places: each repeated by its number, `output_size` in total."""
    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(repeats.cumsum(0), places, right=True)


def _put(
    x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """`torch.put`: put, or add, elements at indices of the flattened tensor."""
    return x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate).view(x.shape)


def _zeros(size: Sequence[int], **settings: Any) -> torch.Tensor:
    """`torch._efficientzerotensor`: zeros without memory in PyTorch."""
    return torch.zeros(size, dtype=settings.get("dtype"), device=settings.get("device"))


def _unfold(x: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """`Tensor.unfold`: PyTorch composes it by strides, which no recorded view has."""
    if not x.dim():
        return x.reshape(1)[:size]
    axis = dimension % x.dim()
    count = (x.size(axis) - size) // step + 1
    if size == step:
        windows = x.narrow(axis, 0, count * size)
    else:
        places = step * torch.arange(count, device=x.device)[:, None] + torch.arange(size, device=x.device)
        windows = x.index_select(axis, places.reshape(-1))
    return windows.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]).movedim(axis + 1, -1)


def _resize_op(op: Any, *ratios: int) -> Callable[..., torch.Tensor]:
    """Return an operation that resizes images, without the scales that ATen's CPU kernels ignore.

    PyTorch's decomposition uses them.

    Args:
        op: An ATen operation whose last arguments are a scale for each spatial axis, or None.
        ratios: Integer factors; an axis that grows by one of them is resized without its scale.
    """

    def found(x: torch.Tensor, output_size: Sequence[int], *options: Any) -> torch.Tensor:
        axes = len(output_size)
        given = [*options, *[None] * (len(op._schema.arguments) - 2 - len(options))]
        sizes = zip(x.shape[-axes:], output_size, given[-axes:], strict=True)
        scales = [None if count in [r * size for r in ratios] else scale for size, count, scale in sizes]
        composed: torch.Tensor = get_decompositions([op])[op](x, output_size, *given[:-axes], *scales)
        return composed

    return found


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.grouped_mm`: one matrix product for each group.

    Args:
        a: `[rows, K]` with groups of rows, `[M, K]` with groups along K, or `[groups, M, K]`.
        b: `[groups, K, N]`; `[K, N]` with groups along K, or along N if `a` has three dimensions.
        offs: the ascending ends of the groups; rows after the last one count as zero. None if both operands
            have three dimensions.
        bias: added to the result.
        out_dtype: element type of the result.

    Returns:
        `[rows, N]`, `[groups, M, N]` or `[M, N]`.
    """
    # The sizes of groups, as of tokens by their experts, depend on values. So one dense product has each row
    # in the block of its group, with zeros elsewhere: sizes follow from shapes, for `groups` times the work.
    if offs is None:
        found = torch.bmm(a, b)
    elif a.dim() == 2 and b.dim() == 3:
        found = _spread(a, _members(offs, a.size(0))) @ b.reshape(-1, b.size(2))
    elif a.dim() == 3:
        rows = _spread(b.transpose(0, 1), _members(offs, b.size(1)))
        found = (rows @ a.transpose(1, 2).reshape(-1, a.size(1))).transpose(0, 1)
    else:
        columns = _members(offs, a.size(1)).transpose(0, 1).to(a.dtype)
        found = (a * columns[:, None, :]) @ b
    found = found if bias is None else found + bias
    return found if out_dtype is None else found.to(out_dtype)


def _members(offs: torch.Tensor, rows: int) -> torch.Tensor:
    """Return `[rows, groups]`, True where a row belongs to a group."""
    places = torch.arange(rows, device=offs.device, dtype=offs.dtype)[:, None]
    begins = torch.cat([torch.zeros_like(offs[:1]), offs[:-1]])
    return torch.logical_and(places >= begins, places < offs)


def _spread(rows: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """Expand `[rows, K]` to `[rows, groups * K]`: each row in the block of its group, zeros elsewhere."""
    return (rows[:, None, :] * members.to(rows.dtype)[:, :, None]).reshape(rows.size(0), -1)


def _grouped_mm_backward(
    x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return grouped_mm(grad, weight.transpose(1, 2), offs), grouped_mm(x.transpose(0, 1), grad, offs)


def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:  # noqa: A002
    """`torch.histc`: counts in equal bins from `min` to `max`, or between the extremes if both are 0."""
    x = x.reshape(-1)
    low: Any = min
    high: Any = max
    if min == max == 0:
        low, high = x.amin(), x.amax()
        equal = (low == high).to(x.dtype)
        low, high = low - equal, high + equal
    elif min == max:
        low, high = min - 1, max + 1
    places = ((x.to(torch.float32) - low) * bins / (high - low)).floor()
    places = torch.where(x == high, bins - 1, places)
    return (places[:, None] == torch.arange(bins, device=x.device)).sum(0).to(x.dtype)


def lstsq(
    a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.linalg.lstsq`: the shortest of the solutions with the least squares, by singular values.

    Args:
        a: `[..., M, N]`.
        b: `[..., M, K]`, or a vector for each matrix, `[..., M]`.
        rcond: singular values up to this share of the largest count as zero.
        driver: driver of LAPACK, which determines the results that have elements.

    Returns:
        solution, sums of the squares that are left, ranks, singular values.
    """
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    u, s, vt = torch.linalg.svd(a, full_matrices=False)
    least = max(a.shape[-2:]) * torch.finfo(a.dtype).eps if rcond is None else rcond
    kept = s > least * s.amax(-1, keepdim=True)
    inverse = torch.where(kept, 1 / torch.where(kept, s, 1.0), 0.0)
    solution = vt.mT @ (inverse.unsqueeze(-1) * (u.mT @ right))
    left = a.new_empty(0)
    if driver in ("gels", "gelss", "gelsd") and a.size(-2) > a.size(-1):
        left = (right - a @ solution).square().sum(-2)
    rank = torch.empty(0, dtype=torch.int64, device=a.device) if driver == "gels" else kept.sum(-1)
    values = s if driver in ("gelss", "gelsd") else a.new_empty(0)
    return solution.squeeze(-1) if is_vector else solution, left, rank, values


DECOMPOSED: Mapping[str, Callable[..., Any]] = {
    "aten::_grouped_mm": grouped_mm,
    "aten::_efficientzerotensor": _zeros,
    "aten::addbmm": addbmm,
    "aten::fmax": _ignoring_nan(torch.maximum),
    "aten::fmin": _ignoring_nan(torch.minimum),
    "aten::fractional_max_pool2d": fractional_max_pool,
    "aten::fractional_max_pool2d_backward": _fractional_max_pool_backward,
    "aten::fractional_max_pool3d": fractional_max_pool,
    "aten::fractional_max_pool3d_backward": _fractional_max_pool_backward,
    "aten::histc": histc,
    "aten::linalg_lstsq": lstsq,
    "aten::multinomial": _multinomial,
    "aten::nanmedian": _nanmedian,
    "aten::nonzero_static": _nonzero_static,
    "aten::put": _put,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::signbit": _signbit,
    "aten::unfold": _unfold,
    "aten::unfold_copy": _unfold,
    "aten::upsample_bilinear2d": _resize_op(torch.ops.aten.upsample_bilinear2d.default, 1),
    "aten::upsample_linear1d": _resize_op(torch.ops.aten.upsample_linear1d.default, 1),
    "aten::upsample_nearest1d": _resize_op(torch.ops.aten.upsample_nearest1d.default, 1, 2),
    "aten::upsample_nearest2d": _resize_op(torch.ops.aten.upsample_nearest2d.default, 1, 2),
    "aten::upsample_nearest3d": _resize_op(torch.ops.aten.upsample_nearest3d.default, 1, 2),
    "aten::upsample_trilinear3d": _resize_op(torch.ops.aten.upsample_trilinear3d.default, 1),
    "prims::signbit": _signbit,
    "prims::where": torch.where,
    "transformers::grouped_mm_fallback": grouped_mm,
    "transformers::grouped_mm_fallback_backward": _grouped_mm_backward,
}
"""Decompositions by the names of the operations' schemas."""


Rule = TypeVar("Rule", bound=Callable[..., Any])


def register_decomposition(op: Any, device: str = "CSX") -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule of an operation.

    Args:
        op: An operation of `torch.ops`, with all overloads if none is named, or several operations.
        device: Backend whose steps use the rule: "CSX". On a CPU, PyTorch has its own rules.

    Raises:
        ValueError: The device is not CSX.
        TypeError: `op` is no operation.
    """
    if str(device).upper() != "CSX":
        raise ValueError(f"device is {device!r}, expected 'CSX': steps on a CPU run the operations of torch")
    operations = op if isinstance(op, list | tuple) else [op]
    overloads = [overload for one in operations for overload in _overloads(one)]

    def register(rule: Rule) -> Rule:
        Program.current().decompositions.update(dict.fromkeys(overloads, rule))
        return rule

    return register


def rule_of(operation: Any) -> Callable[..., Any] | None:
    """Return the registered rule of an operation; None if there is none, or while it is running."""
    program = Program.current()
    return None if operation in program.running_decompositions else program.decompositions.get(operation)


@contextmanager
def running_rule(operation: Any) -> Iterator[None]:
    """Suspend the rule of an operation within the body, because the rule may call the operation."""
    running = Program.current().running_decompositions
    running.append(operation)
    try:
        yield
    finally:
        running.pop()


def _overloads(op: Any) -> list[Any]:
    if isinstance(op, torch._ops.OpOverload):
        return [op]
    if isinstance(op, torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    raise TypeError(f"op is a {type(op).__name__}, expected an operation such as torch.ops.aten.relu.default")
