"""Busy cycles of every op, from the sizes of its tensors."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from cgc.cirh.ops import ops_where
from cgc.cirh.types import numpy_dtype, shape_of, tensor_of
from cgc.kernels.coefficients import coefficient
from cgc.kernels.program import Program, elements

ON_THE_WAY = ops_where(lambda op: not op.TRAITS.work.computes or op.TRAITS.elements.relabels)
"""Ops that are done while elements stream by: moves and casts."""


def op_millicycles(program: Program, index: int) -> int:
    """Thousandths of a cycle that an op needs in a step, over all PEs; not for matrix products."""
    op = program.ops[index]
    wide = max((element_bytes(value) for value in op.results), default=2) > 2
    cycles = sum(
        times * coefficient(kind) * (coefficient("wide_element_factor") if wide and kind == "simple" else 1)
        for kind, times in op.work.kinds.items()
    )
    return math.ceil(1000 * cycles * op.worked_elements())


def stream_millicycles(value: SSAValue) -> int:
    """Thousandths of a cycle to take a value in or to give it out."""
    wide = coefficient("wide_element_factor") if element_bytes(value) > 2 else 1.0
    return math.ceil(1000 * coefficient("stream") * wide * elements(value))


def element_bytes(value: SSAValue) -> int:
    """Bytes of one element."""
    return numpy_dtype(tensor_of(value).element_type).itemsize


def rows_of(value: SSAValue, batch_size: int) -> tuple[int, int]:
    """Rows per sample of a per-sample tensor, and elements of a row.

    `[B * t, d]` has t rows of d, `[B, t, d...]` has t rows of the product of d, `[B, d]` one row of d.
    """
    shape = shape_of(value)
    leading, rest = max(1, shape[0] // batch_size) if shape else 1, shape[1:]
    if len(rest) >= 2:
        leading, rest = leading * rest[0], rest[1:]
    return max(1, leading), max(1, math.prod(rest))
