"""Long sums are fused in a step, and terms of gradients are recognized in degenerate cases."""

from __future__ import annotations

from collections import Counter

import pytest
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.text import parse_module
from cgc.passes.pipeline import run_pipeline
from cgc.passes.sums import centering_term, variance_term


def graph(arguments: str, body: str, results: str = "") -> ModuleOp:
    """Parse a module of one function."""
    return parse_module(f"builtin.module {{ func.func @graph({arguments}) -> ({results}) {{\n{body}\n}} }}")


def count_ops_after_passes(module: ModuleOp) -> Counter[str]:
    run_pipeline(module, verify=True)
    return Counter(op.name.removeprefix("cirh.") for op in module.walk() if isinstance(op, CirhOp))


def sum_of_squares(name: str) -> str:
    """Return the text of the sum `%s_NAME` of the squares of an argument."""
    return (
        f"%q_{name} = cirh.Mul %{name}, %{name} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>\n"
        f'%s_{name} = cirh.Reduce %q_{name} {{reduce_kind = "ADD", dimensions = array<i64: 0>, '
        "keep_dims = false} : (tensor<4xf32>) -> tensor<f32>\n"
    )


def add(result: str, lhs: str, rhs: str) -> str:
    return f"%{result} = cirh.Add %{lhs}, %{rhs} : (tensor<f32>, tensor<f32>) -> tensor<f32>\n"


def root(value: str) -> str:
    return f"%root = cirh.Sqrt %{value} : (tensor<f32>) -> tensor<f32>\nfunc.return %root : tensor<f32>"


def test_the_global_norm_of_a_thousand_gradients_is_one_op() -> None:
    names = [f"g{number}" for number in range(1000)]
    body = "".join(map(sum_of_squares, names)) + add("t1", "s_g0", "s_g1")
    body += "".join(add(f"t{n}", f"t{n - 1}", f"s_g{n}") for n in range(2, 1000))
    arguments = ", ".join(f"%{name}: tensor<4xf32>" for name in names)
    assert count_ops_after_passes(graph(arguments, body + root("t999"), "tensor<f32>")) == {"L2Norm": 1}


def test_a_sum_that_is_doubled_many_times_is_no_norm() -> None:
    """Written out, it would have 2**60 terms."""
    body = sum_of_squares("g") + add("t0", "s_g", "s_g")
    body += "".join(add(f"t{n}", f"t{n - 1}", f"t{n - 1}") for n in range(1, 60))
    counts = count_ops_after_passes(graph("%g: tensor<4xf32>", body + root("t59"), "tensor<f32>"))
    assert counts["L2Norm"] == 0


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_rows_without_elements_and_a_division_by_zero_have_no_gradient(columns: int) -> None:
    full, rows = f"tensor<2x{columns}xf32>", "tensor<2x1xf32>"
    spread = f"{{broadcast_dimensions = array<i64: 0, 1>}} : ({rows}) -> {full}"
    binary = f": ({full}, {full}) -> {full}"
    by_row = f"dimensions = array<i64: 1>, keep_dims = true}} : ({full}) -> {rows}"
    module = graph(
        f"%x: {full}, %upstream: {full}, %variance_grad: {rows}",
        f"""
        %mean = cirh.Reduce %x {{reduce_kind = "MEAN", {by_row}
        %means = cirh.BroadcastInDim %mean {spread}
        %centered = cirh.Sub %x, %means {binary}
        %spread = cirh.BroadcastInDim %variance_grad {spread}
        %zero = cirh.Const dense<0.0> : {full}
        %scaled = cirh.Div %spread, %zero {binary}
        %by_variance = cirh.Mul %scaled, %centered {binary}
        %direct = cirh.Neg %upstream : ({full}) -> {full}
        %total = cirh.Reduce %direct {{reduce_kind = "ADD", {by_row}
        %totals = cirh.BroadcastInDim %total {spread}
        %count = cirh.Const dense<{float(columns)}> : {full}
        %direct_means = cirh.Div %totals, %count {binary}
        %both = cirh.Add %direct, %by_variance {binary}
        %grad = cirh.Sub %both, %direct_means {binary}
        func.return
        """,
    )
    values = {op.results[0].name_hint: op for op in graph_function(module).body.block.ops if op.results}
    variance_grad, centered = graph_function(module).body.block.args[2], values["centered"].results[0]
    assert variance_term(variance_grad, centered) is None
    direct, by_variance = values["direct"], values["by_variance"]
    assert isinstance(direct, ops.NegOp)
    assert isinstance(by_variance, ops.MulOp)
    assert centering_term(direct, by_variance) is (values["direct_means"] if columns else None)
