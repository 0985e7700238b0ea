"""Kernels of a Transformer: layers built of fused ops, and the same layers as they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from cgc.cirh import ops
from cgc.cirh.interface import INPUT_NAME, MODE, OUTPUT_NAME, RESOURCE_NAME
from cgc.cirh.module import verify_module
from cgc.cirh.text import parse_module
from cgc.cirh.types import tensor_type
from cgc.kernels import KernelGraph, match_kernels
from cgc.kernels.coefficients import coefficient

BATCH, LENGTH, HEADS, DEPTH, CLASSES = 4, 6, 2, 5, 50
WIDTH = HEADS * DEPTH
Layer = Callable[["Step", SSAValue], SSAValue]


class Step:
    """Builds a step of inference; state gets generated names."""

    def __init__(self) -> None:
        self.block = Block()
        self.attributes: list[dict[str, StringAttr]] = []
        self.x = self.argument((BATCH, LENGTH, WIDTH), INPUT_NAME, "input_0")

    def argument(self, shape: tuple[int, ...], kind: str, name: str, dtype: str = "float32") -> SSAValue:
        self.attributes.append({kind: StringAttr(name)})
        return self.block.insert_arg(tensor_type(shape, dtype), len(self.block.args))

    def state(self, *shape: int) -> SSAValue:
        return self.argument(shape, RESOURCE_NAME, f"state.model.v{len(self.attributes)}")

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def dense(self, x: SSAValue, inputs: int, outputs: int) -> SSAValue:
        product = self.add(ops.MatMulOp(x, self.state(inputs, outputs)))
        return self.add(ops.BiasAddOp(product, self.state(outputs)))

    def graph(self, result: SSAValue) -> KernelGraph:
        self.block.add_op(ReturnOp(result))
        function = FuncOp(
            "graph",
            FunctionType.from_lists([a.type for a in self.block.args], [result.type]),
            Region(self.block),
            arg_attrs=ArrayAttr([DictionaryAttr(dict(found)) for found in self.attributes]),
            res_attrs=ArrayAttr([DictionaryAttr({OUTPUT_NAME: StringAttr("output_y")})]),
        )
        function.attributes[MODE] = StringAttr("infer")
        module = ModuleOp([function])
        verify_module(module)
        return match_kernels(module)


def heads(step: Step, x: SSAValue) -> SSAValue:
    cut = step.add(ops.ReshapeOp(x, (BATCH, LENGTH, HEADS, DEPTH)))
    return step.add(ops.TransposeOp(cut, (0, 2, 1, 3)))


def fused_core(step: Step, query: SSAValue, key: SSAValue, value: SSAValue) -> SSAValue:
    return step.add(ops.AttentionOp(query, key, value, scale=0.5))


def unfused_core(step: Step, query: SSAValue, key: SSAValue, value: SSAValue) -> SSAValue:
    scores = step.add(ops.MatMulOp(query, key, transpose_b=True))
    half = step.add(ops.ConstOp.from_array(np.array(0.5, np.float32)))
    scale = step.add(ops.BroadcastInDimOp(half, (BATCH, HEADS, LENGTH, LENGTH), ()))
    scaled = step.add(ops.MulOp(scores, scale))
    return step.add(ops.MatMulOp(step.add(ops.SoftmaxOp(scaled, 3)), value))


def attention_layer(step: Step, x: SSAValue, core: Callable[..., SSAValue]) -> SSAValue:
    rows = step.add(ops.ReshapeOp(x, (BATCH * LENGTH, WIDTH)))
    query, key, value = (heads(step, step.dense(rows, WIDTH, WIDTH)) for _ in range(3))
    context = step.add(ops.TransposeOp(core(step, query, key, value), (0, 2, 1, 3)))
    joined = step.add(ops.ReshapeOp(context, (BATCH * LENGTH, WIDTH)))
    return step.add(ops.ReshapeOp(step.dense(joined, WIDTH, WIDTH), (BATCH, LENGTH, WIDTH)))


def norm(step: Step, x: SSAValue) -> SSAValue:
    return step.add(ops.LayerNormOp(x, step.state(WIDTH), step.state(WIDTH), 1e-5))


def names(graph: KernelGraph) -> list[str]:
    return [kernel.name for kernel in graph.kernels]


@pytest.mark.parametrize("core", [fused_core, unfused_core])
def test_an_attention_layer_is_one_kernel_with_its_projections(core: Callable[..., SSAValue]) -> None:
    step = Step()
    graph = step.graph(attention_layer(step, step.x, core))
    assert names(graph) == ["attention1"]
    sizes = graph.kernels[0].parameters
    expected = {"rows": LENGTH, "keys": LENGTH, "heads": HEADS, "inputs": WIDTH, "width": WIDTH}
    assert {name: sizes[name] for name in expected} == expected
    assert (sizes["projections"], sizes["outputs"], sizes["passes"]) == (3, WIDTH, 1)
    # Four matrices with their biases.
    assert sizes["resident_bytes"] == 4 * 4 * (WIDTH * WIDTH + WIDTH)


def test_scores_of_the_shape_of_the_heads_are_distinguished() -> None:
    """Six positions and heads of six: queries, keys, values, context and scores have one shape."""
    step = Step()
    query, key, value = (step.argument((4, 2, 6, 6), INPUT_NAME, f"input_{i}") for i in (1, 2, 3))
    scores = step.add(ops.MatMulOp(query, key, transpose_b=True))
    graph = step.graph(step.add(ops.MatMulOp(step.add(ops.SoftmaxOp(scores, 3)), value)))
    assert names(graph) == ["attention1"]
    assert graph.kernels[0].parameters["projections"] == 0


def test_a_block_has_the_kernels_of_published_reports() -> None:
    step = Step()
    x = step.add(ops.AddOp(step.x, attention_layer(step, norm(step, step.x), fused_core)))
    rows = step.add(ops.ReshapeOp(norm(step, x), (BATCH * LENGTH, WIDTH)))
    wide = step.add(ops.GeluOp(step.dense(rows, WIDTH, 4 * WIDTH)))
    narrow = step.add(ops.ReshapeOp(step.dense(wide, 4 * WIDTH, WIDTH), (BATCH, LENGTH, WIDTH)))
    graph = step.graph(step.add(ops.AddOp(x, narrow)))
    assert names(graph) == ["layer_norm1", "attention1", "add1", "layer_norm2", "fc1", "nlin1", "fc2", "add2"]
    assert not any(kernel.generated for kernel in graph.kernels)
    assert graph.by_name["nlin1"].parameters["row_elements"] == 4 * WIDTH


def test_a_norm_without_a_scale_can_be_squared() -> None:
    """The product that follows the norm has no other factor."""
    step = Step()
    one, zero = (
        step.add(
            ops.BroadcastInDimOp(step.add(ops.ConstOp.from_array(np.array(x, np.float32))), (WIDTH,), ())
        )
        for x in (1.0, 0.0)
    )
    y = step.add(ops.LayerNormOp(step.x, one, zero, 1e-5))
    assert names(step.graph(step.add(ops.MulOp(y, y))))[0] == "layer_norm1"


def test_the_activation_of_a_composite_decides_its_kernel() -> None:
    for function, expected in (("BiasRelu", ["fc1"]), ("BiasGelu", ["fc1", "nlin1"])):
        step = Step()
        rows = step.add(ops.ReshapeOp(step.x, (BATCH * LENGTH, WIDTH)))
        product = step.add(ops.MatMulOp(rows, step.state(WIDTH, 8)))
        graph = step.graph(step.add(ops.CompositeOp(product, step.state(8), function)))
        assert names(graph) == expected
        # The bias lies with the kernel that adds it.
        assert graph.kernels[-1].parameters["resident_bytes"] % (4 * 8) == 0
        assert sum(kernel.parameters["resident_bytes"] for kernel in graph.kernels) == 4 * (WIDTH * 8 + 8)


@pytest.mark.parametrize("name", ["Relu", "Tanh", "Sigmoid", "Elu", "Softplus", "HardSigmoid"])
def test_a_composite_takes_as_long_as_a_bias_and_an_activation(name: str) -> None:
    activation = getattr(ops, f"{name}Op")

    def parameters(activated: Callable[[Step, SSAValue, SSAValue], SSAValue]) -> dict[str, int]:
        step = Step()
        rows = step.add(ops.ReshapeOp(step.x, (BATCH * LENGTH, WIDTH)))
        product = step.add(ops.MatMulOp(rows, step.state(WIDTH, 8)))
        (kernel,) = step.graph(activated(step, product, step.state(8))).kernels
        return dict(kernel.parameters)

    assert parameters(lambda step, x, bias: step.add(ops.CompositeOp(x, bias, f"Bias{name}"))) == parameters(
        lambda step, x, bias: step.add(activation(step.add(ops.BiasAddOp(x, bias))))
    )


def test_positions_are_added_in_a_separate_kernel() -> None:
    step = Step()
    table = step.state(LENGTH, WIDTH)
    code = step.add(ops.BroadcastInDimOp(table, (BATCH, LENGTH, WIDTH), (1, 2)))
    x = step.add(ops.AddOp(step.x, code))
    graph = step.graph(norm(step, x))
    assert names(graph) == ["pos_encoding1", "layer_norm1"]
    assert graph.kernels[0].parameters["resident_bytes"] == 4 * LENGTH * WIDTH


def test_a_table_that_is_the_head_as_well_is_one_kernel() -> None:
    step = Step()
    table = step.state(CLASSES, WIDTH)
    ids = step.argument((BATCH, LENGTH), INPUT_NAME, "input_1", "int32")
    x = norm(step, step.add(ops.GatherOp(table, ids)))
    rows = step.add(ops.ReshapeOp(x, (BATCH * LENGTH, WIDTH)))
    graph = step.graph(step.add(ops.MatMulOp(rows, table, transpose_b=True)))
    assert names(graph) == ["emb_fc1", "layer_norm1"]
    sizes = graph.kernels[0].parameters
    assert (sizes["lookup"], sizes["loss_outputs"]) == (1, 0)
    assert sizes["resident_bytes"] == 4 * CLASSES * WIDTH


def test_the_loss_of_a_sequence_and_its_head_know_each_other() -> None:
    step = Step()
    labels = step.argument((BATCH * LENGTH,), INPUT_NAME, "input_1", "int32")
    rows = step.add(ops.ReshapeOp(step.x, (BATCH * LENGTH, WIDTH)))
    logits = step.dense(rows, WIDTH, CLASSES)
    losses = step.add(ops.SparseSoftmaxCrossEntropyWithLogitsOp(logits, labels))
    graph = step.graph(step.add(ops.ReduceOp(losses, "MEAN", (0,))))
    assert names(graph) == ["fc1", "mlm_loss1"]
    assert graph.by_name["fc1"].parameters["loss_outputs"] == 1
    assert graph.by_name["mlm_loss1"].parameters["rows"] == LENGTH
    assert graph.by_name["mlm_loss1"].parameters["row_elements"] == CLASSES


def test_a_sum_between_ops_of_no_kernel_is_fused_with_them() -> None:
    step = Step()
    graph = step.graph(step.add(ops.AddOp(step.add(ops.SinOp(step.x)), step.x)))
    assert len(graph.kernels) == 1
    assert graph.kernels[0].generated


def test_a_difference_of_two_results_of_a_kernel_is_part_of_it() -> None:
    """Gradients of a layer norm that was not fused end in sums and differences of its own parts."""
    step = Step()
    query, key, value = (step.argument((4, 2, 6, 6), INPUT_NAME, f"input_{i}") for i in (1, 2, 3))
    op = ops.AttentionOp(query, key, value)
    step.block.add_op(op)
    graph = step.graph(step.add(ops.SubOp(op.results[0], op.results[1])))
    assert names(graph) == ["attention1"]


def biased_core(bias: np.ndarray[Any, Any], padded: bool) -> Callable[..., SSAValue]:
    """A fused core with a constant bias `[L, S]`, with or without a padding mask."""

    def core(step: Step, query: SSAValue, key: SSAValue, value: SSAValue) -> SSAValue:
        shape = (BATCH, HEADS, LENGTH, LENGTH)
        constant = step.add(ops.ConstOp.from_array(bias.astype(np.float32)))
        mask = step.add(ops.BroadcastInDimOp(constant, shape, (2, 3)))
        if padded:
            padding = step.argument((BATCH, LENGTH), INPUT_NAME, "input_1")
            mask = step.add(ops.AddOp(mask, step.add(ops.BroadcastInDimOp(padding, shape, (0, 3)))))
        return step.add(ops.AttentionOp(query, key, value, mask, scale=0.5))

    return core


def unfused_biased_core(bias: np.ndarray[Any, Any]) -> Callable[..., SSAValue]:
    """The same as products, a sum and a softmax."""

    def core(step: Step, query: SSAValue, key: SSAValue, value: SSAValue) -> SSAValue:
        scores = step.add(ops.MatMulOp(query, key, transpose_b=True))
        constant = step.add(ops.ConstOp.from_array(bias.astype(np.float32)))
        mask = step.add(ops.BroadcastInDimOp(constant, (BATCH, HEADS, LENGTH, LENGTH), (2, 3)))
        softmax = step.add(ops.SoftmaxOp(step.add(ops.AddOp(scores, mask)), 3))
        return step.add(ops.MatMulOp(softmax, value))

    return core


def waiting_for(core: Callable[..., SSAValue]) -> float:
    """Samples in flight at the kernel before an attention layer."""
    step = Step()
    graph = step.graph(attention_layer(step, norm(step, step.x), core))
    return graph.by_name["layer_norm1"].samples_in_flight


CAUSAL = np.triu(np.full((LENGTH, LENGTH), -1e4), 1)
WINDOW = CAUSAL + np.tril(np.full((LENGTH, LENGTH), -1e4), -3)


def test_an_attention_that_sees_later_keys_holds_a_sample_back() -> None:
    whole = waiting_for(fused_core)
    assert whole == waiting_for(biased_core(CAUSAL.T, padded=False))
    assert whole == waiting_for(biased_core(np.zeros((LENGTH, LENGTH)), padded=True))
    rows_only = waiting_for(biased_core(CAUSAL, padded=False))
    assert whole - rows_only == pytest.approx(2 * (coefficient("attention_delay") - 1 / LENGTH))


def test_a_causal_mask_is_found_among_others_and_without_fused_attention() -> None:
    rows_only = waiting_for(biased_core(CAUSAL, padded=False))
    assert waiting_for(biased_core(CAUSAL, padded=True)) == rows_only
    assert waiting_for(biased_core(WINDOW, padded=False)) == rows_only
    assert waiting_for(unfused_biased_core(CAUSAL)) == rows_only
    assert waiting_for(unfused_biased_core(CAUSAL.T)) > rows_only


@pytest.mark.parametrize("weights_first", [True, False])
def test_samples_wait_longer_in_earlier_layers(weights_first: bool) -> None:
    """Also where the weights of all layers are cast before the first sample is used, as for 16 bits."""
    text = _trained_chain(weights_first)
    graph = match_kernels(parse_module(text))
    stash = [kernel.stash_bytes(1) for kernel in graph.kernels if kernel.family == "fully_connected"]
    assert len(stash) == 3
    assert stash[0] > stash[1] > stash[2] > 0


def test_the_gradient_of_a_product_is_held_in_its_precision() -> None:
    """Value in 32 bits, gradient in 16; gradient descent has no moments."""
    graph = match_kernels(parse_module(_trained_chain(weights_first=True)))
    for kernel in graph.kernels:
        if kernel.family == "fully_connected":
            # The rate of learning is somewhere as well.
            assert kernel.parameters["resident_bytes"] - (4 + 2) * 16 * 16 in (0, 4)
            assert kernel.parameters["update_bytes"] == 0


@pytest.mark.parametrize(("read", "kept"), [("y", (2, 1, 0)), ("x", (1, 1, 1)), (None, (1, 1, 1))])
def test_what_an_activation_makes_is_made_again_where_its_input_is_kept(
    read: str | None, kept: tuple[int, ...]
) -> None:
    """A product keeps its input and the operands of its gradient, not their results."""
    graph = match_kernels(parse_module(_trained_chain(weights_first=True, gradient_reads=read)))
    products = [kernel for kernel in graph.kernels if kernel.family == "fully_connected"]
    row_bytes = 16 * 2
    assert tuple(kernel.parameters["stash_bytes"] // row_bytes for kernel in products) == kept


def _trained_chain(weights_first: bool, gradient_reads: str | None = None) -> str:
    """Three layers with gradients of their weights; a row is a sample.

    Args:
        weights_first: all weights are cast before the first sample is used.
        gradient_reads: what the gradient of the activation reads: its input "y" or its output "x"; None for
            an activation without a gradient.
    """
    rows, square, wide = "tensor<8x16xf16>", "tensor<16x16xf16>", "tensor<16x16xf32>"
    casts = [f"%c{i} = cirh.Cast %w{i} {{Truncate = false}} : ({wide}) -> {square}" for i in range(3)]
    activation = 'Gelu {operand} {{approximation = "NONE"}}' if gradient_reads == "y" else "Exp {operand}"
    layers = [
        f"%y{i} = cirh.MatMul %x{i}, %c{i} {{transpose_a = false, transpose_b = false}} "
        f": ({rows}, {square}) -> {rows}\n  "
        f"%x{i + 1} = cirh.{activation.format(operand=f'%y{i}')} : ({rows}) -> {rows}"
        for i in range(3)
    ]
    pairs = zip(casts, layers, strict=True)
    forward = [*casts, *layers] if weights_first else [line for pair in pairs for line in pair]
    backward = ["%g3 = cirh.Neg %x3 : (tensor<8x16xf16>) -> tensor<8x16xf16>"]
    through = "g" if gradient_reads is None else "a"
    for i in (2, 1, 0):
        if gradient_reads is not None:
            operands = f"%g{i + 1}, %y{i}" if gradient_reads == "y" else f"%x{i + 1}, %g{i + 1}"
            name = 'GeluGrad {ops} {{approximation = "NONE"}}' if gradient_reads == "y" else "TanhGrad {ops}"
            backward.append(f"%a{i + 1} = cirh.{name.format(ops=operands)} : ({rows}, {rows}) -> {rows}")
        backward += [
            f"%d{i} = cirh.MatMul %x{i}, %{through}{i + 1} {{transpose_a = true, transpose_b = false}} "
            f": ({rows}, {rows}) -> {square}",
            f"%e{i} = cirh.Cast %d{i} {{Truncate = false}} : ({square}) -> {wide}",
            f"%n{i} = cirh.GradientDescent %w{i}, %lr, %e{i} : ({wide}, tensor<f32>, {wide}) -> {wide}",
            f"%g{i} = cirh.MatMul %{through}{i + 1}, %c{i} {{transpose_a = false, transpose_b = true}} "
            f": ({rows}, {square}) -> {rows}",
        ]
    state = ", ".join(
        f'%w{i}: {wide} {{tf.resource_name = "state.model.w{i}", tf.aliasing_output = {i} : i64}}'
        for i in range(3)
    )
    body = "\n  ".join(forward + backward)
    return f"""
func.func @graph(
  %x0: {rows} {{cs.input_name = "input_0"}}, {state},
  %lr: tensor<f32> {{tf.resource_name = "state.optimizer.lr"}}
) -> ({wide}, {wide}, {wide}, {rows} {{cs.output_name = "output_y"}}) attributes {{cs.mode = "train"}} {{
  {body}
  func.return %n0, %n1, %n2, %x3 : {wide}, {wide}, {wide}, {rows}
}}"""
