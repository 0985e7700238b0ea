"""Layers, losses and matrix functions as compositions that the compiler has kernels and gradients for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

_of_momentum = _BatchNorm.forward
_pinv = torch.linalg.pinv
_BILINEAR, _NEAREST, _BICUBIC = range(3)
"""ATen's numbers of `interpolation_mode`."""
_ZEROS, _BORDER, _REFLECTION = range(3)
"""ATen's numbers of `padding_mode`."""
_CUBIC = -0.75


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`: a query that sees no key gets zeros.

    Args:
        query: `[..., heads, L, E]`.
        key: `[..., heads, S, E]`; with `enable_gqa` fewer heads, each for several of the query.
        value: `[..., heads, S, Ev]`, with as many heads as `key`.
        attn_mask: broadcast to `[..., L, S]`: True where a query sees a key, or numbers added to scores.
        dropout_p: share of the probabilities that is dropped, in evaluation too.
        is_causal: a query sees no later keys; not together with a mask.
        scale: factor of the scores; 1 / sqrt(E) if None.
        enable_gqa: grouped-query attention.

    Raises:
        ValueError: a mask is given and `is_causal` says another one.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask is given with is_causal=True, expected one of the two")
    if enable_gqa:
        repeats = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    shown = None
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(seen.logical_not(), -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        shown = attn_mask
        scores = torch.where(shown, scores, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    probabilities = functional.softmax(scores, -1)
    if shown is not None:
        probabilities = torch.where(shown, probabilities, 0.0)
    if dropout_p:
        probabilities = functional.dropout(probabilities, dropout_p)
    return probabilities @ value


def rrelu(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional calls it
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.rrelu`: a slope drawn for each element, in evaluation their mean."""
    slope = torch.empty_like(input).uniform_(lower, upper) if training else (lower + upper) / 2
    found = torch.where(input >= 0, input, input * slope)
    return input.copy_(found) if inplace else found


def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`torch._weight_norm`: v with the norms g along an axis."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def renorm(
    input: torch.Tensor,  # noqa: A002
    p: float,
    dim: int,
    maxnorm: float,
) -> torch.Tensor:
    """`torch.renorm`, whose gradient PyTorch computes in float64."""
    axes = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    norm = torch.linalg.vector_norm(input, p, axes, keepdim=True)
    return input * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


def embedding_bag(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.embedding_bag`.

    Args:
        input: ids `[bags, size]`, or `[ids]` with the offsets at which bags begin.
        weight: rows `[rows, width]`.
        offsets: rising, the first one 0; the bags may have any size.
        max_norm: rows with a larger norm are scaled down to it in the table.
        norm_type: order of the norm for `max_norm`.
        scale_grad_by_freq: whether gradients are divided by how often a row is looked up.
        mode: "sum", "mean" or "max".
        sparse: without meaning, as gradients are dense.
        per_sample_weights: factors of the shape of `input`, with "sum".
        include_last_offset: the last offset is the end of the last bag.
        padding_idx: a row that is left out.
    """
    padding = None if padding_idx is None else padding_idx % weight.size(0)
    there = (
        torch.ones_like(input, dtype=weight.dtype) if padding is None else (input != padding).to(weight.dtype)
    )
    rows = functional.embedding(input, weight, padding, max_norm, norm_type, scale_grad_by_freq)
    factors = there if per_sample_weights is None else there * per_sample_weights
    if offsets is None:
        return _of_equal_bags(rows, there, factors, mode)
    count = offsets.size(0) - int(include_last_offset)
    places = torch.arange(input.size(0), device=input.device)
    bags = (places[:, None] >= offsets[None, :count]).sum(1) - 1
    if mode == "max":
        hidden = torch.where(there[:, None] > 0, rows, -torch.inf)
        table = rows.new_full((count, rows.size(1)), -torch.inf).scatter_reduce(
            0, bags[:, None].expand_as(rows), hidden, "amax"
        )
        return torch.where(table.isfinite(), table, 0.0)
    total = rows.new_zeros(count, rows.size(1)).index_add(0, bags, rows * factors[:, None])
    if mode == "sum":
        return total
    return total / rows.new_zeros(count).index_add(0, bags, there).clamp(min=1)[:, None]


def _of_equal_bags(rows: torch.Tensor, there: torch.Tensor, factors: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "max":
        largest = torch.where(there[..., None] > 0, rows, -torch.inf).amax(1)
        return torch.where(largest.isfinite(), largest, 0.0)
    total = (rows * factors[..., None]).sum(1)
    return total if mode == "sum" else total / there.sum(1, keepdim=True).clamp(min=1)


def forward(self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """`_BatchNorm.forward`: without a momentum the running moments are means over all batches so far."""
    # PyTorch reads the number of batches, and only a step knows its value.
    if self.momentum is not None or not self.training or self.running_mean is None:
        return _of_momentum(self, input)
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    with torch.no_grad():
        variance, mean = torch.var_mean(input, [axis for axis in range(input.dim()) if axis != 1])
        share = self.num_batches_tracked.to(mean.dtype).reciprocal()
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
    return functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


def gaussian_nll_loss(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional calls it
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.gaussian_nll_loss`, which does not check that variances are positive."""
    variance = torch.full_like(input, var) if isinstance(var, float | int) else var
    if variance.shape != input.shape and variance.shape == input.shape[:-1]:
        variance = variance.unsqueeze(-1)
    variance = variance + (variance.clamp(min=eps) - variance).detach()
    loss = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    return _reduce(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def multi_margin_loss(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.multi_margin_loss`.

    The sum of max(0, margin - x[y] + x[i])**p over i != y, divided by the number of classes.
    """
    input = input.reshape(-1) if not input.dim() else input  # noqa: A001
    classes = input.size(-1)
    hot = functional.one_hot(target.long(), classes).to(input.dtype)
    chosen = (input * hot).sum(-1, keepdim=True)
    excess = (margin - chosen + input).clamp(min=0) ** p * (1 - hot)
    if weight is not None:
        excess = excess * (hot * weight).sum(-1, keepdim=True)
    return _reduce(excess.sum(-1) / classes, reduction)


def multilabel_margin_loss(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.multilabel_margin_loss`: a row of `target` has labels up to the first -1."""
    if not input.dim():
        input, target = input.reshape(1), target.reshape(1)  # noqa: A001
    classes = input.size(-1)
    counts = (target >= 0).to(input.dtype).cumprod(-1)
    hot = functional.one_hot(target.clamp(min=0).long(), classes).to(input.dtype) * counts[..., None]
    labeled = hot.amax(-2)
    chosen = (hot * input[..., None, :]).sum(-1)
    excess = (1 - chosen[..., None] + input[..., None, :]).clamp(min=0)
    excess = excess * counts[..., None] * (1 - labeled)[..., None, :]
    return _reduce(excess.sum((-1, -2)) / classes, reduction)


def _reduce(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def grid_sampler(
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> torch.Tensor:
    """`torch.grid_sampler`, which `torch.nn.functional.grid_sample` calls.

    Args:
        input: `[N, C, *space]`, two or three dimensions of space.
        grid: `[N, *out, dimensions]`: places from -1 to 1, the last dimension of space first.
        interpolation_mode: 0 linear, 1 nearest, 2 cubic (of two dimensions).
        padding_mode: 0 zeros, 1 the border, 2 the image reflected.
        align_corners: -1 and 1 are the centers of the outermost elements, not their edges.

    Returns:
        `[N, C, *out]`.
    """
    space, count, channels = input.shape[2:], input.shape[0], input.shape[1]
    rows = input.flatten(2).transpose(1, 2).flatten(0, 1)
    # All neighbors of all places are along one last axis, so that one gather takes them.
    flat = torch.arange(count, device=input.device).view(-1, *(1,) * (grid.dim() - 1))
    weights = None
    for axis, size in enumerate(space):
        shifted = grid[..., len(space) - 1 - axis] + 1
        place = shifted / 2 * (size - 1) if align_corners else (shifted * size - 1) / 2
        near, weight = _neighbors(place, size, interpolation_mode, padding_mode, align_corners)
        weight = weight * ((near >= 0) & (near <= size - 1)).to(weight.dtype)
        weights = weight if weights is None else _outer(weights, weight, torch.mul)
        flat = _outer(flat * size, near.clamp(0, size - 1).long(), torch.add)
    assert weights is not None
    taken = rows.index_select(0, flat.flatten()).view(*flat.shape, channels)
    return (taken * weights.unsqueeze(-1)).sum(-2).movedim(-1, 1)


def _outer(
    a: torch.Tensor, b: torch.Tensor, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Combine each element of the last axis of a with each of b, along one last axis."""
    return combine(a.unsqueeze(-1), b.unsqueeze(-2)).flatten(-2)


def _neighbors(
    place: torch.Tensor, size: int, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of the neighbors of each place and their weights, both on a new last axis."""
    if interpolation_mode == _BICUBIC:
        low = place.detach().floor()
        near = torch.stack([low + step for step in range(-1, 3)], -1)
        # Each neighbor is padded by itself, while the weights are those of the unpadded place.
        return _pad(near, size, padding_mode, align_corners), _cubic_weights(place - low)
    place = _pad(place, size, padding_mode, align_corners)
    if interpolation_mode == _NEAREST:
        near = place.detach().round().unsqueeze(-1)
        # The weight is 1 everywhere, and its gradient is zero: PyTorch's has one too.
        return near, torch.where(torch.ones_like(near, dtype=torch.bool), 1.0, place.unsqueeze(-1))
    low = place.detach().floor()
    return torch.stack([low, low + 1], -1), torch.stack([low + 1 - place, place - low], -1)


def _cubic_weights(part: torch.Tensor) -> torch.Tensor:
    """Return Keys' weights of four neighbors of a place at `part` of the way from the second to the third."""

    def near(distance: torch.Tensor) -> torch.Tensor:
        return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1

    def far(distance: torch.Tensor) -> torch.Tensor:
        return ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC

    return torch.stack([far(part + 1), near(part), near(1 - part), far(2 - part)], -1)


def _pad(place: torch.Tensor, size: int, mode: int, align_corners: bool) -> torch.Tensor:
    """Map a place outside of an axis into it; with zeros it stays outside."""
    if mode == _ZEROS:
        return place
    if mode == _REFLECTION:
        edge = 0.0 if align_corners else -0.5
        place = _reflect(place, edge, size - 1 - edge)
    inside = (place > 0) & (place < size - 1)
    return torch.where(inside, place, place.detach().clamp(0, size - 1))


def _reflect(place: torch.Tensor, low: float, high: float) -> torch.Tensor:
    span = high - low
    if span == 0:
        return torch.zeros_like(place)
    distance = torch.where(place < low, low - place, place - low)
    flips = (distance.detach() / span).floor()
    rest = distance - flips * span
    return torch.where(flips % 2 == 0, rest, span - rest) + low


def _pack_padded_sequence(
    input: torch.Tensor,  # noqa: A002 - as PyTorch calls it
    lengths: torch.Tensor,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The implementation of `torch.nn.utils.rnn.pack_padded_sequence`.

    Returns:
        The rows of all sequences, time step by time step, and on this CPU the number of rows of each.

    Raises:
        RuntimeError: the lengths are not sorted in descending order.
        TensorReadError: only a step knows the lengths.
    """
    numbers = lengths.tolist()
    if numbers != sorted(numbers, reverse=True) or not numbers or numbers[-1] < 1:
        raise RuntimeError(
            f"the lengths of a packed sequence are {numbers}, expected positive numbers in descending order; "
            "pass enforce_sorted=False to pack_padded_sequence to have them sorted"
        )
    steps = input.transpose(0, 1) if batch_first else input
    sizes = [sum(length > step for length in numbers) for step in range(numbers[0])]
    rows = [step * steps.size(1) + place for step, size in enumerate(sizes) for place in range(size)]
    return steps.reshape(-1, *steps.shape[2:]).index_select(0, torch.tensor(rows)), torch.tensor(sizes)


def _pad_packed_sequence(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The implementation of `torch.nn.utils.rnn.pad_packed_sequence`.

    Returns:
        The sequences followed by padding, and on this CPU their lengths.
    """
    sizes = batch_sizes.tolist()
    begins = [sum(sizes[:step]) for step in range(len(sizes))]
    rows = [
        begins[step] + place if step < len(sizes) and place < sizes[step] else sum(sizes)
        for step in range(max(total_length, len(sizes)))
        for place in range(sizes[0])
    ]
    longer = torch.cat([data, torch.full_like(data[:1], padding_value)])
    steps = longer.index_select(0, torch.tensor(rows)).reshape(-1, sizes[0], *data.shape[1:])
    lengths = torch.tensor([sum(size > place for size in sizes) for place in range(sizes[0])])
    return (steps.transpose(0, 1) if batch_first else steps), lengths


PACKING = (_pack_padded_sequence, _pad_packed_sequence)


def frobenius_norm(x: torch.Tensor, dim: tuple[int, ...] = (), keepdim: bool = False) -> torch.Tensor:
    """The function that `torch.norm` calls on unknown devices; PyTorch warns that its own is deprecated."""
    return torch.linalg.vector_norm(x, 2, dim or None, keepdim)


def matrix_rank(
    A: torch.Tensor,  # noqa: N803 - as torch calls it
    tol: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> torch.Tensor:
    """`torch.linalg.matrix_rank`: the number of singular values above a limit.

    Args:
        A: `[..., M, N]`.
        tol: the limit, in the older signature.
        hermitian: A is symmetric; its lower triangle is read.
        atol: the limit.
        rtol: the limit as a share of the largest one, by default the precision times the size without `atol`.
    """
    values = torch.linalg.eigvalsh(A).abs() if hermitian else torch.linalg.svdvals(A)
    if tol is not None:
        atol, rtol = tol, 0.0
    if rtol is None:
        default = max(A.shape[-2:]) * torch.finfo(A.dtype).eps
        given = torch.as_tensor(0.0 if atol is None else atol, device=A.device)
        rtol = torch.where(given > 0, 0.0, default)
    relative = _of_each_matrix(rtol, values) * values.amax(-1, keepdim=True)
    return (values > torch.maximum(relative, _of_each_matrix(0.0 if atol is None else atol, values))).sum(-1)


def _of_each_matrix(limit: Any, values: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(limit, dtype=values.dtype, device=values.device).unsqueeze(-1)


def pinv(
    A: torch.Tensor,  # noqa: N803
    rcond: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> torch.Tensor:
    """`torch.linalg.pinv`, with its limits in the element type of the matrices."""
    rtol = rcond if rtol is None else rtol
    limits = {
        name: torch.as_tensor(limit, dtype=A.dtype, device=A.device)
        for name, limit in (("atol", atol), ("rtol", rtol))
        if limit is not None
    }
    if hermitian:  # PyTorch reads the lower triangle
        A = A + (A.tril() + A.tril(-1).mT - A).detach()  # noqa: N806
    with torch._C.DisableTorchFunctionSubclass():
        return _pinv(A, **limits)


def pinverse(input: torch.Tensor, rcond: float = 1e-15) -> torch.Tensor:  # noqa: A002
    """`torch.pinverse`."""
    return pinv(input, rcond)


def householder_product(A: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """`torch.linalg.householder_product`, by the compact WY form `I - V T V^T`.

    Source: R. Schreiber and C. Van Loan, A storage-efficient WY representation for products of Householder
    transformations, 1989.

    Args:
        A: `[..., M, N]`, whose first K columns have the reflectors below the diagonal.
        tau: `[..., K]`, the scale of each reflector.
    """
    (rows, columns), count = A.shape[-2:], tau.size(-1)
    options = {"dtype": A.dtype, "device": A.device}
    reflectors = A[..., :count].tril(-1) + torch.eye(rows, count, **options)
    scale = tau.unsqueeze(-1)
    one = torch.eye(count, **options)
    products = (reflectors.mT @ reflectors).triu(1)
    t = torch.linalg.solve_triangular(one + scale * products, scale * one, upper=True, unitriangular=True)
    first = reflectors[..., :columns, :].mT
    return torch.eye(rows, columns, **options) - reflectors @ (t @ first)
