"""Kernel matching of random steps: no op is lost, none is in two kernels, and the result repeats."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cgc.cirh.text import parse_module
from cgc.kernels import match_kernels
from cgc.placement import place
from cs_toolkit.fabric import load_fabric

from .examples import examples

X = "tensor<4x6xf32>"
W = "tensor<6x6xf32>"
LAYERS = (None, [], ["a"], ["a", "b"], ["dropout"], ["w"], ["w", "0"])

# result type, text with the operands %x (batch) and %w (state), and the operand types
OPS = (
    (X, "cirh.Exp %x", f"({X})"),
    (X, "cirh.Relu %x", f"({X})"),
    (X, "cirh.ReluGrad %x, %y", f"({X}, {X})"),
    (X, "cirh.Mul %x, %y", f"({X}, {X})"),
    (X, "cirh.Softmax %x {axis = 1 : i64}", f"({X})"),
    (X, "cirh.MatMul %x, %w {transpose_a = false, transpose_b = false}", f"({X}, {W})"),
    (X, "cirh.MatMul %x, %w {transpose_a = false, transpose_b = true}", f"({X}, {W})"),
    (W, "cirh.MatMul %x, %y {transpose_a = true, transpose_b = false}", f"({X}, {X})"),
    (W, "cirh.Add %w, %v", f"({W}, {W})"),
    (W, "cirh.Transpose %w {permutation = array<i64: 1, 0>}", f"({W})"),
    (W, "cirh.GradientDescent %w, %lr, %v", f"({W}, tensor<f32>, {W})"),
    (X, "cirh.RandomUniform %step {global_seed = 1 : i64, op_seed = 2 : i64}", "(tensor<i32>)"),
    (X, "cirh.Const dense<5.000000e-01>", None),
)


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, int]:
    """The text of a step, and how many ops it has."""
    batch, state = ["%x0", "%x1"], ["%w0", "%w1"]
    lines = []
    count = draw(st.integers(1, 40))
    for index in range(count):
        result, text, operands = draw(st.sampled_from(OPS))
        for placeholder, choices in (("%x", batch), ("%y", batch), ("%w", state), ("%v", state)):
            text = text.replace(placeholder, draw(st.sampled_from(choices)).replace("%", "@")).replace(
                "@", "%"
            )
        layer = draw(st.sampled_from(LAYERS))
        if operands is None:
            text = f"{text} : {result}"
        else:
            attributes = "" if layer is None else f"cs.layer = {json.dumps(layer)}"
            if "{" in text:
                text = text.replace("}", f", {attributes}}}" if attributes else "}")
            elif attributes:
                text = f"{text} {{{attributes}}}"
            text = f"{text} : {operands} -> {result}"
        lines.append(f"%r{index} = {text}")
        (batch if result == X else state).append(f"%r{index}")
    new_w0, new_w1, output = (
        draw(st.sampled_from(state)),
        draw(st.sampled_from(state)),
        draw(st.sampled_from(batch)),
    )
    body = "\n  ".join(lines)
    text = f"""
func.func @graph(
  %x0: {X} {{cs.input_name = "input_0"}}, %x1: {X} {{cs.input_name = "input_1"}},
  %w0: {W} {{tf.resource_name = "state.model.w0", tf.aliasing_output = 0 : i64}},
  %w1: {W} {{tf.resource_name = "state.model.w1", tf.aliasing_output = 1 : i64}},
  %lr: tensor<f32> {{tf.resource_name = "state.optimizer.lr"}},
  %step: tensor<i32> {{tf.resource_name = "state.global_step"}}
) -> ({W}, {W}, {X} {{cs.output_name = "output_y"}}) attributes {{cs.mode = "train"}} {{
  {body}
  func.return {new_w0}, {new_w1}, {output} : {W}, {W}, {X}
}}"""
    return text, count


@settings(max_examples=examples(15))
@given(steps())
def test_every_op_is_in_exactly_one_kernel_and_the_graph_places(step: tuple[str, int]) -> None:
    text, count = step
    module = parse_module(text)
    graph = match_kernels(module)
    assert sorted(index for kernel in graph.kernels for index in kernel.op_indices) == list(range(count))
    assert len({kernel.name for kernel in graph.kernels}) == len(graph.kernels)
    assert all(edge.src != edge.dst and edge.elements_per_sample >= 1 for edge in graph.edges)
    assert match_kernels(parse_module(text)) == graph
    placement = place(graph, load_fabric("cs2"))
    assert set(placement.rects) == {kernel.name for kernel in graph.kernels}
