"""The format cbfloat16, against its definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from cgc.precision import CB16_LARGEST, CB16_SMALLEST, CB16_SMALLEST_NORMAL, rounded_to_cb16


def decoded(codes: np.ndarray) -> np.ndarray:
    """The numbers of cbfloat16 codes: 1 sign bit, 6 exponent bits with bias 31, 9 mantissa bits."""
    exponent, mantissa = (codes >> 9 & 63).astype(np.float64), codes & 511
    normal = (1 + mantissa / 512) * 2.0 ** (exponent - 31)
    finite = np.where(exponent == 0, mantissa * 2.0**-39, normal)
    special = np.where(mantissa == 0, np.inf, np.nan)
    return (np.where(exponent == 63, special, finite) * np.where(codes >> 15, -1.0, 1.0)).astype(np.float32)


def test_all_65536_codes_are_their_own_rounding() -> None:
    numbers = decoded(np.arange(65536))
    np.testing.assert_array_equal(rounded_to_cb16(numbers), numbers)
    finite = np.isfinite(numbers)
    np.testing.assert_array_equal(np.signbit(rounded_to_cb16(numbers)[finite]), np.signbit(numbers[finite]))
    assert numbers[finite].max() == CB16_LARGEST == 4290772992
    assert numbers[numbers > 0].min() == CB16_SMALLEST
    assert decoded(np.array([1 << 9])) == CB16_SMALLEST_NORMAL


def test_between_two_codes_the_nearer_one_wins_and_the_even_one_of_equals() -> None:
    codes = np.arange(63 << 9)
    low, high = decoded(codes[:-1]), decoded(codes[1:])
    middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
    even = np.where(codes[:-1] % 2 == 0, low, high)
    for sign in (1, -1):
        np.testing.assert_array_equal(rounded_to_cb16(sign * middle), sign * even)
        np.testing.assert_array_equal(rounded_to_cb16(sign * np.nextafter(middle, 0)), sign * low)
        np.testing.assert_array_equal(rounded_to_cb16(sign * np.nextafter(middle, np.inf)), sign * high)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.0**32, np.inf),
        (-(2.0**32), -np.inf),
        (np.float32(2.0**32 - 2.0**21), np.inf),  # half way to the number after the largest
        (np.nextafter(np.float32(2.0**32 - 2.0**21), np.float32(0)), CB16_LARGEST),
        (np.float32(3.4e38), np.inf),
        (2.0**-40, 0.0),
        (1.5 * 2.0**-40, 2.0**-39),
        (-1e-45, -0.0),
        (0.1, float(Fraction(819, 8192))),
    ],
)
def test_ends_of_the_range(value: float, expected: float) -> None:
    rounded = rounded_to_cb16(np.array([value], np.float32))[0]
    assert rounded == np.float32(expected)
    assert np.signbit(rounded) == np.signbit(expected)


def test_nan_stays_nan() -> None:
    payloads = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(rounded_to_cb16(payloads)).all()
