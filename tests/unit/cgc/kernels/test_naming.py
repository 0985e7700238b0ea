"""The names of kernels: from the layers of ops (`cs.layer`), never from the framework's names of nodes."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.base import LAYER, CirhOp, LayerPath
from cgc.cirh.text import parse_module
from cgc.kernels import match_kernels

# As a PyTorch program has it: modules in a list, an op outside of them, no names of nodes.
TEXT = """
func.func @graph(
    %x: tensor<8x6xf32> {cs.input_name = "input_0"}, %g: tensor<6xf32> {tf.resource_name = "state.model.g"}
) -> (tensor<8x6xf32> {cs.output_name = "output_y"}) attributes {cs.mode = "infer"} {
  %gs = cirh.BroadcastInDim %g {broadcast_dimensions = array<i64: 1>, cs.layer = ["layers", "0"]}
    : (tensor<6xf32>) -> tensor<8x6xf32>
  %a = cirh.Mul %x, %gs {cs.layer = ["layers", "0"]} : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  %b = cirh.Sin %a {cs.layer = ["layers", "0"]} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %c = cirh.Cos %b {cs.layer = ["layers", "1", "cell"]} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %d = cirh.Sin %c {cs.layer = ["layers", "1", "cell"]} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %e = cirh.Exp %d {cs.layer = []} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  func.return %e : tensor<8x6xf32>
}"""
NAMES = ["layers.0", "layers.1.cell", "exp1"]


def ops_of(module: ModuleOp) -> list[CirhOp]:
    return [op for op in module.walk() if isinstance(op, CirhOp)]


def names_of(module: ModuleOp) -> list[str]:
    return [kernel.name for kernel in match_kernels(module).kernels]


def test_kernels_are_formed_and_named_by_layers() -> None:
    assert names_of(parse_module(TEXT)) == NAMES


def test_the_attribute_decides_whatever_the_nodes_are_called() -> None:
    nodes = ("gradients/one/x_grad/a", "gradients/one/y", "two/moments/b", "two/c", "one/d", "one/e")
    module = parse_module(TEXT)
    for op, node in zip(ops_of(module), nodes, strict=True):
        op.set_origin(node_name=node)
    assert names_of(module) == NAMES


def test_nothing_is_read_from_the_names_of_nodes() -> None:
    module = parse_module(TEXT)
    for op in ops_of(module):
        del op.attributes[LAYER]
        op.set_origin(node_name="encoder/dense/x")
    assert names_of(module) == ["elementwise1"]


def renamed(paths: Mapping[LayerPath, LayerPath]) -> list[str]:
    module = parse_module(TEXT)
    for op in ops_of(module):
        op.set_origin(layer=paths.get(op.layer))
    return names_of(module)


def test_a_path_may_repeat_a_name() -> None:
    first, second = ("layers", "0"), ("layers", "1", "cell")
    assert renamed({first: ("block", "block"), second: ("block",)}) == ["block.block", "block", "exp1"]


def test_layers_whose_names_look_alike_are_numbered() -> None:
    """A letter that no name of a kernel has becomes an underscore."""
    first, second = ("layers", "0"), ("layers", "1", "cell")
    assert renamed({first: ("a.b",), second: ("a:b",)}) == ["a_b", "a_b_2", "exp1"]
