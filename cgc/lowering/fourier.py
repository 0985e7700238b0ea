"""Lowerings of Fourier transforms: XLA's own, on complex numbers made of the parts."""

from __future__ import annotations

import jax
from jax import lax

from cgc.cirh import ops
from cgc.cirh.ops import FftOp, IrfftOp, RfftOp
from cgc.lowering.dtypes import result_shape
from cgc.lowering.table import Table


def fft(op: FftOp, re: jax.Array, im: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The transform of a pair; the inverse is divided by the length."""
    return _transform(lax.complex(re, im), "IFFT" if op.inverse else "FFT", re.shape[-1])


def rfft(_op: RfftOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first half of the transform of real numbers."""
    return _transform(x, "RFFT", x.shape[-1])


def irfft(op: IrfftOp, re: jax.Array, im: jax.Array) -> jax.Array:
    """The real numbers that have such a half as transform."""
    if not re.size:
        return lax.full(result_shape(op), 0, re.dtype)
    found: jax.Array = lax.fft(lax.complex(re, im), "IRFFT", (op.length,))
    return found


def _transform(x: jax.Array, kind: str, length: int) -> tuple[jax.Array, jax.Array]:
    found = lax.fft(x, kind, (length,))
    return lax.real(found), lax.imag(found)


LOWERINGS: Table = {
    ops.FftOp: fft,
    ops.RfftOp: rfft,
    ops.IrfftOp: irfft,
}
