"""Strided slices, resolved: the same elements as numpy's indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgc.importers.tensorflow.constant_folding import MASKS, resolve_slice

from .examples import examples

Entry = int | slice | None


@st.composite
def indexings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any]]:
    """A shape, and a valid numpy index of integers, slices, new axes and at most one ellipsis."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    bound = st.none() | st.integers(-7, 7)
    step = st.sampled_from([-3, -2, -1, 1, 2, 3])
    entries: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            entries.append(draw(st.integers(-size, size - 1)))
        else:
            entries.append(slice(draw(bound), draw(bound), draw(step)))
        if draw(st.integers(0, 4)) == 0:
            entries.append(None)
    if draw(st.booleans()):
        # The axes left out are those at the ellipsis, so only trailing entries may follow without a shift.
        entries.append(Ellipsis)
    return shape, entries


def as_masks(entries: list[Any]) -> tuple[list[int], list[int], list[int], dict[str, int]]:
    begin, end, strides = [], [], []
    masks = dict.fromkeys(MASKS, 0)
    for position, entry in enumerate(entries):
        bit = 1 << position
        low, high, step = 0, 0, 1
        if entry is Ellipsis:
            masks["ellipsis_mask"] |= bit
        elif entry is None:
            masks["new_axis_mask"] |= bit
        elif isinstance(entry, int):
            low, masks["shrink_axis_mask"] = entry, masks["shrink_axis_mask"] | bit
        else:
            step = entry.step
            low, high = entry.start or 0, entry.stop or 0
            masks["begin_mask"] |= bit if entry.start is None else 0
            masks["end_mask"] |= bit if entry.stop is None else 0
        begin.append(low)
        end.append(high)
        strides.append(step)
    return begin, end, strides, masks


@settings(max_examples=examples(15))
@given(indexings())
def test_resolves_to_numpys_elements(case: tuple[tuple[int, ...], list[Any]]) -> None:
    shape, entries = case
    x = np.arange(np.prod(shape)).reshape(shape)
    found = resolve_slice(shape, *as_masks(entries))
    taken = x[np.ix_(*(np.asarray(axis.indices, int) for axis in found.axes))]
    np.testing.assert_array_equal(taken.reshape(found.shape), x[tuple(entries)])
    assert taken.shape == found.kept_shape


def test_ellipsis_in_the_middle() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    found = resolve_slice(x.shape, *as_masks([1, Ellipsis, slice(0, 2, 1)]))
    assert found.shape == x[1, ..., 0:2].shape
    assert [axis.indices for axis in found.axes] == [range(1, 2), range(3), range(2)]


@pytest.mark.parametrize(
    ("entries", "message"),
    [([7], "index 7 is out of range for axis 0 of size 3"), ([0, 0], "2 axes are indexed, the tensor has 1")],
)
def test_bad_indices_name_the_fault(entries: list[Any], message: str) -> None:
    with pytest.raises(IndexError, match=message):
        resolve_slice((3,), *as_masks(entries))
