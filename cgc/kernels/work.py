"""Busy cycles of every op, from the sizes of its tensors."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.composite import COMPOSITES, CompositeOp
from cgc.cirh.pool import WindowOp
from cgc.cirh.types import numpy_dtype, shape_of, tensor_of
from cgc.kernels.coefficients import coefficient
from cgc.kernels.program import Program, elements

FREE = frozenset({"Const", "Reshape", "BroadcastInDim"})
"""Ops without work: a constant is loaded once, the others only change which index an element has."""

MOVES = frozenset(
    {"Transpose", "Concat", "Slice", "pad", "Pad", "Gather", "ScatterNd", "Scatter", "OneHot", "Arange"}
)
"""Ops that only move elements (or write constants)."""

PRODUCTS = frozenset({"MatMul", "Convolution"})
RANDOM = frozenset({"RandomUniform", "RandomNormal", "StatelessRandomUniform"})
LOSSES = frozenset({"SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"})
OPTIMIZERS = frozenset({"GradientDescent", "Momentum", "Adam", "AdamW", "RMSProp", "Adagrad"})
NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormGrad"})
REDUCTIONS = frozenset({"Reduce", "ArgMax", "CumSum", "Softmax", "LogSoftmax", "BiasAddGrad"}) | NORMS

_KINDS: tuple[tuple[frozenset[str], dict[str, float]], ...] = (
    (frozenset({"Exp", "Expm1", "Log", "Log1p", "Sin", "Cos", "Tanh", "Erf", "Elu"}), {"transcendental": 1}),
    (frozenset({"SoftplusGrad"}), {"transcendental": 1}),
    (frozenset({"Sigmoid"}), {"transcendental": 1, "divide": 1}),
    (frozenset({"Softplus", "Pow", "Atan2"}), {"transcendental": 2}),
    (frozenset({"Gelu"}), {"transcendental": 1, "simple": 6}),
    (frozenset({"GeluGrad"}), {"transcendental": 2, "simple": 10}),
    (frozenset({"Div", "Sqrt", "Rsqrt", "Reciprocal", "FloorDiv", "FloorMod"}), {"divide": 1}),
    (frozenset({"RandomUniform", "StatelessRandomUniform"}), {"random": 1}),
    (frozenset({"RandomNormal"}), {"random": 1, "transcendental": 2}),
    (frozenset({"Softmax", "LogSoftmax"}), {"transcendental": 1, "simple": 4}),
    (LOSSES, {"transcendental": 1, "simple": 6}),
    (frozenset({"SigmoidGrad", "TanhGrad", "EluGrad"}), {"simple": 3}),
    (frozenset({"Adam"}), {"divide": 2, "simple": 12}),
    (frozenset({"AdamW"}), {"divide": 2, "simple": 14}),
    (frozenset({"RMSProp"}), {"divide": 2, "simple": 8}),
    (frozenset({"Adagrad"}), {"divide": 2, "simple": 4}),
    (frozenset({"Momentum"}), {"simple": 4}),
    (frozenset({"GradientDescent"}), {"simple": 2}),
    (frozenset({"FusedBatchNorm"}), {"simple": 5}),
    (frozenset({"FusedBatchNormGrad"}), {"simple": 7}),
    (frozenset({"MaxPoolGrad"}), {"simple": 2}),
    (frozenset({"Unique"}), {"stream": 1, "simple": 1}),
    (MOVES, {"stream": 1}),
    (FREE, {}),
)
_PER_ELEMENT = {mnemonic: kinds for mnemonics, kinds in _KINDS for mnemonic in mnemonics}
"""How often an element needs each kind of work; ops that are not listed are `simple` once."""

_LARGEST_OPERAND_COUNTS = REDUCTIONS | LOSSES
_LAST_OPERAND_COUNTS = frozenset({"ScatterNd", "Scatter"})
_SORTS = frozenset({"Unique"})
"""Ops that merge sorted runs: every element is compared and moved once for each doubling of the runs."""


def op_millicycles(program: Program, index: int) -> int:
    """Thousandths of a cycle that an op needs in a step, over all PEs; not for matrix products."""
    mnemonic = program.mnemonics[index]
    op = program.ops[index]
    kinds = _kinds(op, mnemonic)
    wide = max((element_bytes(value) for value in op.results), default=2) > 2
    cycles = sum(
        times * coefficient(kind) * (coefficient("wide_element_factor") if wide and kind == "simple" else 1)
        for kind, times in kinds.items()
    )
    return math.ceil(1000 * cycles * _worked_elements(program, index))


def _kinds(op: CirhOp, mnemonic: str) -> dict[str, float]:
    """How often an element needs each kind of work; a composite is a sum and its activation."""
    if isinstance(op, CompositeOp):
        activation = _PER_ELEMENT.get(COMPOSITES[op.function][0], {"simple": 1})
        return {**activation, "simple": activation.get("simple", 0) + 1}
    return _PER_ELEMENT.get(mnemonic, {"simple": 1})


def reductions(program: Program, index: int) -> int:
    """Sums and maxima along a row of a sample that an op takes; over samples alone there is none."""
    mnemonic = program.mnemonics[index]
    if mnemonic in LOSSES or mnemonic in ("Softmax", "LogSoftmax"):
        return 2
    if mnemonic == "Reduce":
        return int(any(axis > 0 for axis in getattr(program.ops[index], "dimensions", ())))
    if mnemonic in NORMS:
        return 2 if getattr(program.ops[index], "is_training", False) else int(mnemonic.endswith("Grad"))
    return int(mnemonic in ("ArgMax", "CumSum"))


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


def _worked_elements(program: Program, index: int) -> int:
    op, mnemonic = program.ops[index], program.mnemonics[index]
    if mnemonic in _LAST_OPERAND_COUNTS:
        return elements(op.operands[-1])
    if isinstance(op, WindowOp):
        pooled = op.results[0] if mnemonic == "Pool" else op.operands[-1]
        return elements(pooled) * math.prod(op.ksize)
    if mnemonic in _SORTS:
        count = elements(op.operands[0])
        return count * max(1, (count - 1).bit_length())
    counts = [elements(result) for result in op.results]
    if mnemonic in _LARGEST_OPERAND_COUNTS:
        counts += [elements(operand) for operand in op.operands]
    return max(counts, default=0)
