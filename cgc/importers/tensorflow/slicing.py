"""The five masks of StridedSlice, resolved against a static shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgc.importers.composed.slices import AxisRange, Slicing

MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def resolve(
    shape: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    masks: dict[str, int],
) -> Slicing:
    """Resolves a StridedSlice.

    Args:
        shape: the input's shape.
        begin: one start per entry of the slice specification.
        end: one end per entry.
        strides: one step per entry.
        masks: the five attributes named in `MASKS`.

    Raises:
        IndexError: more entries than axes, or an index out of range.
    """
    axes: list[AxisRange] = []
    result: list[int] = []
    for entry in _entries(len(shape), begin, end, strides, masks):
        if entry is None:
            result.append(1)
            continue
        size = shape[len(axes)]
        if isinstance(entry, int):
            position = entry + size if entry < 0 else entry
            if not 0 <= position < size:
                raise IndexError(f"index {entry} is out of range for axis {len(axes)} of size {size}")
            axes.append(AxisRange(position, 1, 1))
            continue
        start, stop, step = entry.indices(size)
        count = len(range(start, stop, step))
        axes.append(AxisRange(start, count, step))
        result.append(count)
    return Slicing(tuple(axes), tuple(result))


def _entries(
    rank: int, begin: Sequence[int], end: Sequence[int], strides: Sequence[int], masks: dict[str, int]
) -> list[Any]:
    """Python index entries: a slice, an int (axis dropped) or None (axis added), the ellipsis spelled out."""

    def has(name: str, position: int) -> bool:
        return bool(masks[name] >> position & 1)

    entries: list[Any] = []
    ellipsis_at: int | None = None
    for i, (low, high, step) in enumerate(zip(begin, end, strides, strict=True)):
        if has("ellipsis_mask", i):
            ellipsis_at = len(entries)
        elif has("new_axis_mask", i):
            entries.append(None)
        elif has("shrink_axis_mask", i):
            entries.append(int(low))
        else:
            first = None if has("begin_mask", i) else int(low)
            last = None if has("end_mask", i) else int(high)
            entries.append(slice(first, last, int(step)))
    missing = rank - sum(entry is not None for entry in entries)
    if missing < 0:
        raise IndexError(f"{rank - missing} axes are indexed, the tensor has {rank}")
    at = len(entries) if ellipsis_at is None else ellipsis_at
    entries[at:at] = [slice(None)] * missing
    return entries
