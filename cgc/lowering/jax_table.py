"""The table of lowerings of all CIRH ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn
from xdsl.ir import Attribute, Block

from cgc.cirh.base import CirhOp
from cgc.cirh.types import numpy_dtype, shape_of, tensor_of
from cgc.errors import LoweringError
from cgc.lowering import (
    activation,
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    optimizer,
    pool,
    random,
    reduction,
    shape,
    softmax,
    token_loop,
)
from cgc.lowering.base import Table, describe, device_type

LOWERINGS: Table = {
    **activation.LOWERINGS,
    **convolution.LOWERINGS,
    **elementwise.LOWERINGS,
    **indexing.LOWERINGS,
    **linear.LOWERINGS,
    **normalization.LOWERINGS,
    **optimizer.LOWERINGS,
    **pool.LOWERINGS,
    **random.LOWERINGS,
    **reduction.LOWERINGS,
    **shape.LOWERINGS,
    **softmax.LOWERINGS,
    **token_loop.LOWERINGS,
}


def lower(op: CirhOp, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Compute the values of all results of `op`.

    Raises:
        LoweringError: the table has no entry for the op, or the op holds a value that the device cannot
            compute.
    """
    lowering = LOWERINGS.get(type(op))
    if lowering is None:
        raise LoweringError(
            f"{describe(op)}: no lowering is known for this op; expected one of the ops of cgc.cirh.ops"
        )
    values = lowering(op, *operands)
    return values if isinstance(values, tuple) else (values,)


def trace(op: CirhOp) -> ClosedJaxpr:
    """Return the jaxpr of an op, from its operands to its results.

    Raises:
        LoweringError: as `lower`.
    """
    properties = tuple(sorted(op.properties.items()))
    return _trace(type(op), properties, tuple(op.operand_types), tuple(op.result_types))


@lru_cache(maxsize=4096)
def _trace(
    kind: type[CirhOp],
    properties: tuple[tuple[str, Attribute], ...],
    operand_types: tuple[Attribute, ...],
    result_types: tuple[Attribute, ...],
) -> ClosedJaxpr:
    # Tracing takes about 2 ms, and the ops of a model have few signatures.
    block = Block(arg_types=operand_types)
    op = kind.create(operands=block.args, result_types=result_types, properties=dict(properties))
    struct: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct  # untyped in JAX
    types = [device_type(numpy_dtype(tensor_of(value).element_type)) for value in block.args]
    arguments = [struct(shape_of(value), dtype) for value, dtype in zip(block.args, types, strict=True)]
    return jax.make_jaxpr(lambda *values: lower(op, *values))(*arguments)


def called_jaxpr(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the function that an equation calls, if it is a call."""
    if eqn.primitive.name not in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"):
        return None
    found: Any = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr") or eqn.params.get("fun_jaxpr")
    return found if isinstance(found, ClosedJaxpr) else ClosedJaxpr(found, ())
