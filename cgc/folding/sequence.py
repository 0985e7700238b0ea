"""Sequences of copies without most of them, and what they are with all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Item(NamedTuple):
    """One of a sequence.

    Attributes:
        family: equal for the copies of something.
        copy: which copy; None for what is no copy.
    """

    family: int
    copy: int | None = None


def expanded(items: Sequence[Item], more: int) -> tuple[list[Item], dict[int, int]]:
    """A sequence with more copies in the middle.

    A stretch that is followed by the same of the next copies, or of the copies before, is repeated with all
    that are between.

    Args:
        items: each at most once.
        more: how many copies come in.

    Returns:
        The longer sequence, and of each family that has grown the last copy that keeps its number.
    """
    place = {item: index for index, item in enumerate(items)}
    kept: dict[int, int] = {}
    stretches: dict[int, tuple[int, int]] = {}
    index = 0
    while index < len(items):
        found = None if items[index].family in kept else _stretch(items, place, index)
        if found is None:
            index += 1
            continue
        length, way = found
        for family, copy in items[index : index + length]:
            assert copy is not None, "stretches are of copies"
            kept[family] = copy if way > 0 else copy - 1
        stretches[index + length] = found
        index += length
    made: list[Item] = []
    for index, (family, copy) in enumerate(items):
        if index in stretches:
            made += _between(items, index, *stretches[index], more, kept)
        is_later = copy is not None and family in kept and copy > kept[family]
        made.append(Item(family, copy + more if is_later and copy is not None else copy))
    return made, kept


def _stretch(items: Sequence[Item], place: dict[Item, int], start: int) -> tuple[int, int] | None:
    """(length, 1 or -1) of the stretch at a place that is followed by the same of the next or last copies."""
    family, copy = items[start]
    if copy is None:
        return None
    for way in (1, -1):
        after = place.get(Item(family, copy + way), -1)
        length = after - start
        if 0 < length <= len(items) - after and all(
            one.copy is not None and other == (one.family, one.copy + way)
            for one, other in zip(items[start:after], items[after : after + length], strict=True)
        ):
            return length, way
    return None


def _between(
    items: Sequence[Item], end: int, length: int, way: int, more: int, kept: dict[int, int]
) -> list[Item]:
    """The copies that come in behind a stretch."""
    families = [item.family for item in items[end - length : end]]
    steps = range(1, more + 1) if way > 0 else range(more, 0, -1)
    return [Item(family, kept[family] + step) for step in steps for family in families]
