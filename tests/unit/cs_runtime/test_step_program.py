"""Outputs of labels and ids that the chief checks."""

from __future__ import annotations

import numpy as np
import pytest

from cgc.cirh.interface import step_interface
from cgc.cirh.module import verify_module
from cgc.cirh.text import parse_module
from cgc.kernels import KernelGraph, match_kernels
from cs_runtime.errors import OutOfRangeError
from cs_runtime.program import RangeCheck, check_steps
from cs_runtime.step_program import add_range_checks
from cs_system.client import StepOutputs

TAGGER = """
module {
  func.func @graph(
    %table: tensor<11x8xf32> {tf.resource_name = "state.model.table"},
    %kernel: tensor<8x5xf32> {tf.resource_name = "state.model.kernel"},
    %ids: tensor<4x6xi32> {cs.input_name = "input_0"},
    %tags: tensor<4x6xi32> {cs.input_name = "input_1"}
  ) -> (tensor<24xf32> {cs.output_name = "output_losses"}) attributes {cs.mode = "infer"} {
    %rows = cirh.Gather %table, %ids {axis = 0 : i64} : (tensor<11x8xf32>, tensor<4x6xi32>) -> tensor<4x6x8xf32>
    %hidden = cirh.Reshape %rows : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %logits = cirh.MatMul %hidden, %kernel : (tensor<24x8xf32>, tensor<8x5xf32>) -> tensor<24x5xf32>
    %labels = cirh.Reshape %tags : (tensor<4x6xi32>) -> tensor<24xi32>
    %next = cirh.Add %labels, %labels {cs.name = "doubled"} : (tensor<24xi32>, tensor<24xi32>) -> tensor<24xi32>
    %losses, %b = cirh.SparseSoftmaxCrossEntropyWithLogits %logits, LABELS {axis = 1 : i64, cs.name = "xent", cs.source = "model.py:7"}
      : (tensor<24x5xf32>, tensor<24xi32>) -> (tensor<24xf32>, tensor<24x5xf32>)
    func.return %losses : tensor<24xf32>
  }
}
"""  # noqa: E501 - the text form of the dialect

TAGS = RangeCheck("tags", -1, 5, "the labels of 'xent'", "min", "max")
IDS = RangeCheck("ids", 0, 11, "the rows of 'table'", "least", "most")


def sizes(graph: KernelGraph) -> list[object]:
    return [(kernel.name, kernel.family, kernel.parameters) for kernel in graph.kernels]


def test_ranges_cost_no_kernel() -> None:
    module = parse_module(TAGGER.replace("LABELS", "%labels"))
    before = match_kernels(module)
    checks = add_range_checks(module, ["ids", "tags"])
    verify_module(module)
    assert [(check.tensor, check.low, check.high) for check in checks] == [("ids", 0, 11), ("tags", -1, 5)]
    assert checks[1].use == "the labels of 'xent' (model.py:7)"
    outputs = [output.name for output in step_interface(module).outputs]
    assert outputs == [
        "output_losses",
        *(name for check in checks for name in (check.minimum, check.maximum)),
    ]
    assert sizes(match_kernels(module)) == sizes(before)


def test_labels_that_the_program_computes_have_the_name_of_their_op() -> None:
    module = parse_module(TAGGER.replace("LABELS", "%next"))
    assert [check.tensor for check in add_range_checks(module, ["ids", "tags"])] == ["ids", "doubled"]


def span(least: list[int], most: list[int], smallest: list[int], largest: list[int]) -> StepOutputs:
    """Three steps after the seventh."""
    rows = {"least": least, "most": most, "min": smallest, "max": largest}
    outputs = {"output_loss": np.zeros(3), **{name: np.asarray(values) for name, values in rows.items()}}
    return StepOutputs(7, 3, outputs, 12)


def test_outputs_of_checks_are_not_the_programs() -> None:
    got = check_steps([IDS, TAGS], span([0, 0, 0], [10, 3, 4], [-1, 0, -1], [4, 4, 4]))
    assert (got.first_step, got.count, list(got.outputs)) == (7, 3, ["output_loss"])


def test_the_earliest_step_is_named() -> None:
    with pytest.raises(OutOfRangeError, match="'tags' holds -2 in step 9, expected 0 to 4, or -1") as caught:
        check_steps([IDS, TAGS], span([0, 0, -3], [10, 3, 4], [-1, -2, -1], [4, 4, 9]))
    assert caught.value.step == 9
