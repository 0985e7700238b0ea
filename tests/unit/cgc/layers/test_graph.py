"""A step as integers."""

from __future__ import annotations

from cgc.cirh.text import parse_module
from cgc.kernels.program import Program
from cgc.layers.graph import step_graph

_INPUT_FIRST = """
func.func @graph(%x: tensor<2x3xf32> {cs.input_name = "input_0"},
    %w: tensor<3xf32> {tf.resource_name = "model/w", tf.aliasing_output = 0 : i64},
    %y: tensor<2x3xf32> {cs.input_name = "input_1"},
    %v: tensor<3xf32> {tf.resource_name = "model/v", tf.aliasing_output = 1 : i64})
    -> (tensor<3xf32>, tensor<3xf32>) attributes {cs.mode = "train"} {
  %sum = cirh.Add %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %rows = cirh.Reduce %sum {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false}
      : (tensor<2x3xf32>) -> tensor<3xf32>
  %new = cirh.Mul %w, %rows : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %next = cirh.Mul %v, %new : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  func.return %new, %next : tensor<3xf32>, tensor<3xf32>
}
"""


def test_values_are_numbered_as_in_the_program_wherever_arguments_stand() -> None:
    program = Program(parse_module(_INPUT_FIRST))
    graph = step_graph(program)
    for op, operands, results in zip(program.ops, graph.operands, graph.results, strict=True):
        assert [program.values[number] for number in operands] == list(op.operands)
        assert [program.values[number] for number in results] == list(op.results)
    assert {program.state[program.values[number]] for number in graph.state} == {"model/w", "model/v"}
    assert graph.replacements == {0: 6, 1: 7}
    assert [graph.types[number] == graph.types[0] for number in range(8)] == [
        value.type == program.values[0].type for value in program.values
    ]
    assert graph.labels[2] == graph.labels[3] != graph.labels[0]
