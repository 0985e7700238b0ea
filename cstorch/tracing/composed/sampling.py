"""Images sampled at places that data says, of which PyTorch describes no gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch

_BILINEAR, _NEAREST, _BICUBIC = range(3)
"""ATen's numbers of `interpolation_mode`."""
_ZEROS, _BORDER, _REFLECTION = range(3)
"""ATen's numbers of `padding_mode`."""
_CUBIC = -0.75


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
    # All neighbours of all places along one last axis, so that they are one gather.
    flat = torch.arange(count, device=input.device).view(-1, *(1,) * (grid.dim() - 1))
    weights = None
    for axis, size in enumerate(space):
        place = _place(grid[..., len(space) - 1 - axis], size, align_corners)
        near, weight = _neighbours(place, size, interpolation_mode, padding_mode, align_corners)
        weight = weight * ((near >= 0) & (near <= size - 1)).to(weight.dtype)
        weights = weight if weights is None else _outer(weights, weight, torch.mul)
        flat = _outer(flat * size, near.clamp(0, size - 1).long(), torch.add)
    assert weights is not None
    taken = rows.index_select(0, flat.flatten()).view(*flat.shape, channels)
    return (taken * weights.unsqueeze(-1)).sum(-2).movedim(-1, 1)


def _outer(
    a: torch.Tensor, b: torch.Tensor, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Each of the last axis of a combined with each of the last axis of b, in one last axis."""
    return combine(a.unsqueeze(-1), b.unsqueeze(-2)).flatten(-2)


def _place(coordinate: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """The place in an axis of a coordinate from -1 to 1."""
    return (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2


def _neighbours(
    place: torch.Tensor, size: int, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of the neighbors of each place and their weights, both on a new last axis."""
    if interpolation_mode == _BICUBIC:
        low = place.detach().floor()
        near = torch.stack([low + step for step in range(-1, 3)], -1)
        # Each neighbour is padded by itself, while the weights are those of the place as it is.
        return _padded(near, size, padding_mode, align_corners), _cubic_weights(place - low)
    place = _padded(place, size, padding_mode, align_corners)
    if interpolation_mode == _NEAREST:
        near = place.detach().round().unsqueeze(-1)
        # The weight is 1 wherever the place is, whose gradient is zero: PyTorch's has one too.
        return near, torch.where(torch.ones_like(near, dtype=torch.bool), 1.0, place.unsqueeze(-1))
    low = place.detach().floor()
    return torch.stack([low, low + 1], -1), torch.stack([low + 1 - place, place - low], -1)


def _cubic_weights(part: torch.Tensor) -> torch.Tensor:
    """Keys' weights of four neighbours for a place `part` of the way from the second to the third."""

    def near(distance: torch.Tensor) -> torch.Tensor:
        return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1

    def far(distance: torch.Tensor) -> torch.Tensor:
        return ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC

    return torch.stack([far(part + 1), near(part), near(1 - part), far(2 - part)], -1)


def _padded(place: torch.Tensor, size: int, mode: int, align_corners: bool) -> torch.Tensor:
    """A place outside of an axis as one inside of it; with zeros it stays outside."""
    if mode == _ZEROS:
        return place
    if mode == _REFLECTION:
        edge = 0.0 if align_corners else -0.5
        place = _reflected(place, edge, size - 1 - edge)
    inside = (place > 0) & (place < size - 1)
    return torch.where(inside, place, place.detach().clamp(0, size - 1))


def _reflected(place: torch.Tensor, low: float, high: float) -> torch.Tensor:
    span = high - low
    if span == 0:
        return torch.zeros_like(place)
    distance = torch.where(place < low, low - place, place - low)
    flips = (distance.detach() / span).floor()
    rest = distance - flips * span
    return torch.where(flips % 2 == 0, rest, span - rest) + low
