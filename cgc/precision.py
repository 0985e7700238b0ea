"""The 16-bit format of the wafer, cbfloat16.

It has 1 sign bit, 6 exponent bits (bias 31) and 9 mantissa bits, and is IEEE-like: gradual underflow,
infinities, NaN, rounding to the nearest with ties to even. Every finite value is a float32 as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CB16_MANTISSA_BITS = 9
CB16_SMALLEST_NORMAL = 2.0**-30
CB16_SMALLEST = 2.0**-39  # the smallest subnormal, and the distance between subnormals
CB16_LARGEST = (2 - 2.0**-9) * 2.0**31

_DROPPED_BITS = 23 - CB16_MANTISSA_BITS


def rounded_to_cb16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the nearest cbfloat16 of each value, ties to even, as float32.

    It works on the bits of float32, unlike the form that runs on the device (`cgc.lowering.precision`).
    """
    bits = values.astype(np.float32).view(np.uint32)
    tie_to_even = bits >> np.uint32(_DROPPED_BITS) & np.uint32(1)
    carried = bits + tie_to_even + np.uint32((1 << (_DROPPED_BITS - 1)) - 1)
    normal = (carried & np.uint32(~((1 << _DROPPED_BITS) - 1) & 0xFFFFFFFF)).view(np.float32)
    limited = np.where(np.abs(normal) > CB16_LARGEST, np.copysign(np.float32(np.inf), values), normal)
    small = np.abs(values) < CB16_SMALLEST_NORMAL
    subnormal = np.rint(np.where(small, values, 0) / CB16_SMALLEST) * CB16_SMALLEST
    rounded = np.where(small, np.copysign(subnormal, values), limited)
    return np.where(np.isnan(values), values, rounded).astype(np.float32)
