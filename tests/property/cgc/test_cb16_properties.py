"""Rounding to cbfloat16 against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cgc.lowering.precision import round_to_cb16
from cgc.precision import CB16_LARGEST, rounded_to_cb16

BITS = st.integers(0, 2**32 - 1)
NEAR_BORDERS = st.builds(
    lambda sign, exponent, mantissa, offset: sign << 31 | max(0, (exponent << 23 | mantissa << 13) + offset),
    st.integers(0, 1),
    st.integers(80, 162),
    st.integers(0, 1023),
    st.integers(-1, 1),
)
"""Bits of floats at ties, at codes and next to them, from far below the subnormals to above the largest."""

_on_device = jax.jit(round_to_cb16)


def exact(value: Fraction) -> Fraction:
    """The nearest number of 10 significant bits and an exponent of at least -30, ties to even."""
    if value == 0:
        return value
    exponent = -30
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 9)
    return round(value / unit) * unit  # rounds halves to even


@given(st.lists(BITS | NEAR_BORDERS, min_size=16, max_size=16))
def test_nearest_ties_to_even(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    rounded = rounded_to_cb16(values)
    device = np.asarray(_on_device(values))
    for value, got, on_device in zip(values, rounded, device, strict=True):
        if np.isnan(value):
            assert np.isnan(got)
            assert np.isnan(on_device)
            continue
        assert np.signbit(got) == np.signbit(on_device) == np.signbit(value)
        assert got == on_device
        if np.isinf(value):
            assert got == value
            continue
        expected = exact(Fraction(float(value)))
        if abs(expected) > CB16_LARGEST:
            assert np.isinf(got)
        else:
            assert Fraction(float(got)) == expected


@given(st.lists(BITS | NEAR_BORDERS, min_size=16, max_size=16))
def test_rounding_again_changes_nothing_and_keeps_the_order(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    values = np.sort(values[~np.isnan(values)])
    rounded = rounded_to_cb16(values)
    np.testing.assert_array_equal(rounded_to_cb16(rounded), rounded)
    assert (rounded[:-1] <= rounded[1:]).all()
