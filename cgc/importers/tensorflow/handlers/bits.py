"""The bits of numbers.

The device has no access to the bits of a float. What programs, Keras' argmax among them, take from the bits
is the sign, which also tells -0 from 0; that is computed.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.emit import dtype_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import FloatBits, NodeContext, Table, Value

_INTEGERS_32 = frozenset({"int32", "uint32"})
_SIGN_BIT = np.int64(1) << 31


def _bitcast(node: NodeContext) -> Value:
    x, dtype = node.x(0), node.out_dtype()
    if dtype_of(x) == "float32" and dtype in _INTEGERS_32:
        return FloatBits(x, dtype)
    if {dtype_of(x), dtype} <= _INTEGERS_32:
        return node.emit.cast(x, dtype)
    raise RefusedError(Kind.USAGE, f"it takes the bits of {dtype_of(x)} for {dtype}")


def _and(node: NodeContext) -> SSAValue:
    """Of the bits of a float only the one of the sign can be taken."""
    bits, mask = node.inputs if isinstance(node.inputs[0], FloatBits) else reversed(node.inputs)
    if not isinstance(bits, FloatBits) or not isinstance(mask, np.ndarray):
        raise _no_bits()
    if not (mask.astype(np.int64) % 2**32 == _SIGN_BIT).all():
        raise _no_bits()
    e = node.emit
    sign = e.constant(_SIGN_BIT.astype(np.uint32).astype(bits.dtype))
    return e.select(_is_negative(node, bits.value), e.broadcast(sign, mask.shape), e.scalar(0, bits.dtype))


def _is_negative(node: NodeContext, x: SSAValue) -> SSAValue:
    """Whether the sign is minus: x < 0, or x is the zero whose reciprocal is minus infinity."""
    e = node.emit
    zero = e.scalar(0, dtype_of(x))
    minus_zero = e.compare("LT", e.unary(ops.ReciprocalOp, x), zero)
    return e.binary(
        ops.OrOp, e.compare("LT", x, zero), e.binary(ops.AndOp, e.compare("EQ", x, zero), minus_zero)
    )


def _no_bits() -> RefusedError:
    return RefusedError(Kind.USAGE, "of the bits of a float only that of the sign can be taken")


TABLE: Table = {"Bitcast": _bitcast}

ON_BITS: Table = {"BitwiseAnd": _and}
"""Operations on integers that take the bits of floats as well."""
