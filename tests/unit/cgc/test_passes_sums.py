"""Long, odd and empty sums: what `fuse` and canonicalization find in them, and that neither stumbles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import ConstOp
from cgc.cirh.types import tensor_type
from cgc.passes.pipeline import run_pipeline
from cgc.passes.sums import centering_term, variance_term

Shape = tuple[int, ...]


class Program:
    """A function under construction."""

    def __init__(self, *shapes: Shape) -> None:
        self.block = Block(arg_types=[tensor_type(shape, "float32") for shape in shapes])

    def add(self, op: CirhOp) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def number(self, value: float, shape: Shape = ()) -> SSAValue:
        return self.add(ConstOp.splat(value, tensor_type(shape, "float32")))

    def fused(self, results: Sequence[SSAValue | Operation], passes: str = "default") -> Counter[str]:
        """How many ops of each kind there are after passes."""
        values = [SSAValue.get(result) for result in results]
        self.block.add_op(ReturnOp(*values))
        types = (self.block.arg_types, [value.type for value in values])
        module = ModuleOp([FuncOp("graph", types, Region(self.block))])
        run_pipeline(module, passes, verify=True)
        return Counter(op.name.removeprefix("cirh.") for op in module.walk() if isinstance(op, CirhOp))


def sum_of_squares(program: Program, x: SSAValue) -> SSAValue:
    return program.add(ops.ReduceOp(program.add(ops.MulOp(x, x)), "ADD", [0]))


def test_the_global_norm_of_a_thousand_gradients_is_one_op() -> None:
    program = Program(*[(4,)] * 1000)
    total = sum_of_squares(program, program.block.args[0])
    for gradient in program.block.args[1:]:
        total = program.add(ops.AddOp(total, sum_of_squares(program, gradient)))
    assert program.fused([program.add(ops.SqrtOp(total))]) == {"L2Norm": 1}


def test_a_sum_that_is_doubled_many_times_is_no_norm() -> None:
    """Written out, it has 2**60 terms."""
    program = Program((4,))
    total = sum_of_squares(program, program.block.args[0])
    for _ in range(60):
        total = program.add(ops.AddOp(total, total))
    assert program.fused([program.add(ops.SqrtOp(total))])["L2Norm"] == 0


def test_a_product_of_a_row_is_no_sum_of_squares() -> None:
    program = Program((4,))
    (x,) = program.block.args
    product = program.add(ops.ReduceOp(program.add(ops.MulOp(x, x)), "MUL", [0]))
    assert program.fused([program.add(ops.SqrtOp(product))])["L2Norm"] == 0


def adam_with_decay(rate: float, decay: float) -> Counter[str]:
    """Adam of a parameter that has lost `decay` times itself first."""
    program = Program((4,), (4,), (4,), (4,))
    param, m, v, grad = program.block.args
    lost = program.add(ops.MulOp(param, program.number(decay, (4,))))
    left = program.add(ops.SubOp(param, lost))
    numbers = [program.number(value) for value in (0.9, 0.99, rate, 0.9, 0.99, 1e-8)]
    adam = ops.AdamOp(left, m, v, *numbers, grad)
    program.add(adam)
    return program.fused(adam.results)


@pytest.mark.parametrize(("rate", "decay"), [(0.1, 0.01), (0.1, 0.0)])
def test_a_folded_decay_is_that_of_adam_w(rate: float, decay: float) -> None:
    assert adam_with_decay(rate, decay)["AdamW"] == 1


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_the_decay_stays_apart_where_the_learning_rate_is_zero(decay: float) -> None:
    """There, no weight decay times the rate gives it."""
    counts = adam_with_decay(0.0, decay)
    assert (counts["Adam"], counts["AdamW"]) == (1, 0)


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_rows_without_elements_and_a_division_by_zero_have_no_gradient(columns: int) -> None:
    program = Program((2, columns), (2, columns), (2, 1))
    x, upstream, variance_grad = program.block.args
    shape = (2, columns)
    mean = program.add(ops.ReduceOp(x, "MEAN", [1], keep_dims=True))
    centered = program.add(ops.SubOp(x, program.add(ops.BroadcastInDimOp(mean, shape, (0, 1)))))
    spread = program.add(ops.BroadcastInDimOp(variance_grad, shape, (0, 1)))
    scaled = program.add(ops.DivOp(spread, program.number(0.0, shape)))
    by_variance = ops.MulOp(scaled, centered)
    program.add(by_variance)
    assert variance_term(variance_grad, centered) is None
    direct = ops.NegOp(upstream)
    total = program.add(ops.ReduceOp(program.add(direct), "ADD", [1], keep_dims=True))
    means = ops.DivOp(program.add(ops.BroadcastInDimOp(total, shape, (0, 1))), program.number(columns, shape))
    program.add(means)
    both = program.add(ops.AddOp(direct, by_variance))
    program.add(ops.SubOp(both, means))
    assert centering_term(direct, by_variance) is (means if columns else None)
