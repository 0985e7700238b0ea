"""Any op of the dialect, as the only one of a graph, becomes a kernel that places and has an estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region

from cgc.cirh import ops
from cgc.cirh.interface import INPUT_NAME, MODE, OUTPUT_NAME
from cgc.cirh.module import verify_module
from cgc.cirh.types import tensor_type
from cgc.kernels import match_kernels
from cgc.placement import place
from cgc.report import build_report, render_text
from cs_toolkit.fabric import load_fabric

from .every_op import CASES, Argument


def single_op_module(arguments: Sequence[Argument], build: Callable[..., Operation]) -> ModuleOp:
    """A module of one op: its operands are batch inputs, its results are outputs."""
    block = Block(arg_types=[tensor_type(shape, dtype) for shape, dtype in arguments])
    op = build(*block.args)
    block.add_ops([op, ReturnOp(*op.results)])
    function = FuncOp(
        "graph",
        FunctionType.from_lists([value.type for value in block.args], [value.type for value in op.results]),
        Region(block),
        arg_attrs=ArrayAttr(
            [DictionaryAttr({INPUT_NAME: StringAttr(f"input_{i}")}) for i in range(len(block.args))]
        ),
        res_attrs=ArrayAttr(
            [DictionaryAttr({OUTPUT_NAME: StringAttr(f"output_{i}")}) for i in range(len(op.results))]
        ),
    )
    function.attributes[MODE] = StringAttr("infer")
    module = ModuleOp([function])
    verify_module(module)
    return module


def test_there_is_a_case_for_every_op() -> None:
    assert set(CASES) == {op.__name__ for op in ops.ALL_OPS}


@pytest.mark.parametrize("name", CASES)
def test_a_single_op_compiles_to_a_report(name: str) -> None:
    module = single_op_module(*CASES[name])
    fabric = load_fabric("cs2")

    graph = match_kernels(module)
    report = build_report(graph, place(graph, fabric), fabric)

    assert [kernel.op_indices for kernel in graph.kernels] == [(0,)]
    assert graph.kernels[0].name in render_text(report)
    figures = report.pipelined.performance.overall
    assert figures.compute_cycles >= 1
    assert figures.transmission_cycles >= 1
    assert figures.active_pes >= 1
