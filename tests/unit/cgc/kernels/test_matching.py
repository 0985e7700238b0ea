"""Which ops end in which kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgc.cirh import ops
from cgc.cirh.optimizer import OptimizerOp
from cgc.cirh.text import parse_module
from cgc.errors import KernelGraphError
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.placement import place
from cs_toolkit.fabric import load_fabric

FC_MNIST = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


@pytest.fixture(scope="module")
def mnist() -> KernelGraph:
    return match_kernels(parse_module(FC_MNIST.read_text()))


def matched(arguments: str, results: str, body: str, mode: str = "train") -> KernelGraph:
    text = f"""
    func.func @graph({arguments}) -> ({results}) attributes {{cs.mode = "{mode}"}} {{
      {body}
    }}"""
    return match_kernels(parse_module(text))


def ops_of(kernel: Kernel) -> list[str]:
    return [op.removeprefix("cirh.") for op in kernel.ops]


def test_fc_mnist_has_a_kernel_for_every_layer_and_one_for_the_scalars(mnist: KernelGraph) -> None:
    assert [(kernel.name, kernel.family) for kernel in mnist.kernels] == [
        ("fc1", "fully_connected"),
        ("dropout1", "dropout"),
        ("fc2", "fully_connected"),
        ("dropout2", "dropout"),
        ("fc3", "fully_connected"),
        ("loss1", "loss"),
        ("control", "control"),
    ]
    assert mnist.batch_size == 256
    assert mnist.input_bytes_per_sample == 784 * 4 + 4


def test_the_hosts_send_64_bit_integers_in_32_bits() -> None:
    graph = matched(
        '%x: tensor<8x4xi64> {cs.input_name = "input_0"}',
        'tensor<8x4xi64> {cs.output_name = "output_x"}',
        "%y = cirh.Neg %x : (tensor<8x4xi64>) -> tensor<8x4xi64>\n func.return %y : tensor<8x4xi64>",
        "infer",
    )
    assert graph.input_bytes_per_sample == 4 * 4


def test_every_op_is_in_exactly_one_kernel(mnist: KernelGraph) -> None:
    module = parse_module(FC_MNIST.read_text())
    count = sum(1 for op in module.walk() if op.name.startswith("cirh."))
    indices = [index for kernel in mnist.kernels for index in kernel.op_indices]
    assert sorted(indices) == list(range(count))


def test_a_layer_holds_all_its_products_its_bias_activation_and_updates(mnist: KernelGraph) -> None:
    first, second = mnist.by_name["fc1"], mnist.by_name["fc2"]
    assert ops_of(second).count("MatMul") == 3
    assert {"BiasAdd", "Relu", "ReluGrad", "BiasAddGrad"} <= set(ops_of(second))
    assert ops_of(second).count("Adam") == 2
    # Nobody needs the gradient of the batch.
    assert ops_of(first).count("MatMul") == 2
    assert first.parameters["inputs"] == 784
    assert first.parameters["outputs"] == 500
    assert first.parameters["passes"] == 2
    # Weights, gradient and two Adam moments of kernel and bias, and the two scalar beta powers at most.
    assert first.parameters["resident_bytes"] == pytest.approx(4 * 4 * (784 * 500 + 500), abs=16)


def test_a_kernel_names_the_line_of_the_user(mnist: KernelGraph) -> None:
    assert mnist.by_name["fc1"].source == "model.py:15"
    assert mnist.by_name["dropout1"].source == "model.py:18"
    assert mnist.by_name["control"].source is None


def test_edges_carry_the_elements_of_a_sample(mnist: KernelGraph) -> None:
    elements = {(edge.src, edge.dst): edge.elements_per_sample for edge in mnist.edges}
    assert elements["fc1", "dropout1"] == 500
    assert elements["dropout1", "fc2"] == 500
    assert elements["fc2", "dropout1"] == 500
    assert elements["fc3", "loss1"] == 10


def test_activations_wait_longer_the_earlier_their_layer(mnist: KernelGraph) -> None:
    """A sample passes four stages after fc1 before its gradient comes back, and one after fc3."""
    first, last = mnist.by_name["fc1"], mnist.by_name["fc3"]
    # The gradient of ReLU needs one bit of an element, which values of the batch share in bytes.
    assert first.parameters["stash_bytes"] == 784 * 4 + -(-500 // 8)
    assert last.parameters["stash_bytes"] == 300 * 4
    assert (first.samples_in_flight, last.samples_in_flight) == (11, 3)
    assert first.stash_bytes(1) == 11 * first.parameters["stash_bytes"]
    assert first.stash_bytes(0.5) == 6 * first.parameters["stash_bytes"]


def test_inference_has_no_backward_pass_and_no_stash() -> None:
    graph = matched(
        '%w: tensor<6x4xf32> {tf.resource_name = "state.model.w"}, '
        '%x: tensor<8x6xf32> {cs.input_name = "input_0"}',
        'tensor<8xi64> {cs.output_name = "output_classes"}',
        """
        %y = cirh.MatMul %x, %w {transpose_a = false, transpose_b = false}
            : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
        %r = cirh.Relu %y : (tensor<8x4xf32>) -> tensor<8x4xf32>
        %c = cirh.ArgMax %r {axis = 1 : i64} : (tensor<8x4xf32>) -> tensor<8xi64>
        func.return %c : tensor<8xi64>
        """,
        mode="infer",
    )
    layer, classes = graph.kernels
    assert (layer.name, layer.family, ops_of(layer)) == ("fc1", "fully_connected", ["MatMul", "Relu"])
    assert layer.parameters["passes"] == 1
    assert layer.parameters["stash_bytes"] == 0
    assert (classes.name, classes.family, classes.generated) == ("argmax1", "reduction", True)


def test_attention_products_share_a_kernel_with_their_gradients() -> None:
    graph = matched(
        '%acc: tensor<2x3x5x4xf32> {tf.resource_name = "state.model.acc", tf.aliasing_output = 0 : i64}, '
        '%q: tensor<2x3x5x4xf32> {cs.input_name = "input_0"}, '
        '%k: tensor<2x3x5x4xf32> {cs.input_name = "input_1"}',
        'tensor<2x3x5x4xf32>, tensor<f32> {cs.output_name = "output_loss"}',
        """
        %s = cirh.MatMul %q, %k {transpose_a = false, transpose_b = true}
            : (tensor<2x3x5x4xf32>, tensor<2x3x5x4xf32>) -> tensor<2x3x5x5xf32>
        %l = cirh.Reduce %s {reduce_kind = "ADD", dimensions = array<i64: 0, 1, 2, 3>, keep_dims = false}
            : (tensor<2x3x5x5xf32>) -> tensor<f32>
        %d = cirh.MatMul %s, %k {transpose_a = false, transpose_b = false}
            : (tensor<2x3x5x5xf32>, tensor<2x3x5x4xf32>) -> tensor<2x3x5x4xf32>
        func.return %d, %l : tensor<2x3x5x4xf32>, tensor<f32>
        """,
    )
    product, loss = graph.kernels
    assert (product.family, ops_of(product)) == ("matmul", ["MatMul", "MatMul"])
    assert product.parameters["rows"] == 3 * 5
    assert (product.parameters["inputs"], product.parameters["outputs"]) == (4, 5)
    assert product.parameters["reload"] == 1
    assert loss.family == "reduction"


TIED = (
    '%t: tensor<50x4xf32> {tf.resource_name = "state.model.table", tf.aliasing_output = 0 : i64}, '
    '%i: tensor<8xi32> {cs.input_name = "input_0"}, '
    '%lr: tensor<f32> {tf.resource_name = "state.optimizer.lr"}'
)


def test_an_embedding_holds_lookup_gradient_and_update_of_its_table() -> None:
    graph = matched(
        TIED,
        'tensor<50x4xf32>, tensor<8x4xf32> {cs.output_name = "output_rows"}',
        """
        %e = cirh.Gather %t, %i {axis = 0 : i64} : (tensor<50x4xf32>, tensor<8xi32>) -> tensor<8x4xf32>
        %g = cirh.Neg %e : (tensor<8x4xf32>) -> tensor<8x4xf32>
        %s = cirh.ScatterNd %i, %g {reduce_kind = "ADD"}
            : (tensor<8xi32>, tensor<8x4xf32>) -> tensor<50x4xf32>
        %n = cirh.GradientDescent %t, %lr, %s
            : (tensor<50x4xf32>, tensor<f32>, tensor<50x4xf32>) -> tensor<50x4xf32>
        func.return %n, %e : tensor<50x4xf32>, tensor<8x4xf32>
        """,
    )
    table = graph.by_name["emb1"]
    assert ops_of(table) == ["Gather", "ScatterNd", "GradientDescent"]
    # The table and its gradient.
    assert table.parameters["resident_bytes"] == pytest.approx(2 * 50 * 4 * 4, abs=4)


SPARSE = (
    '%t: tensor<50x4xf32> {tf.resource_name = "state.model.table", tf.aliasing_output = 0 : i64}, '
    '%a: tensor<50x4xf32> {tf.resource_name = "state.optimizer.table/Momentum", '
    "tf.aliasing_output = 1 : i64}, "
    '%i: tensor<8xi32> {cs.input_name = "input_0"}, '
    '%lr: tensor<f32> {tf.resource_name = "state.optimizer.lr"}'
)


def test_an_embedding_holds_the_sparse_update_of_its_table_and_of_the_optimizers_state() -> None:
    """The rows of the accumulator are looked up as well, but are no separate table."""
    graph = matched(
        SPARSE,
        'tensor<50x4xf32>, tensor<50x4xf32>, tensor<8x4xf32> {cs.output_name = "output_rows"}',
        """
        %last = cirh.Const dense<49> : tensor<i32>
        %lasts = cirh.BroadcastInDim %last {broadcast_dimensions = array<i64>}
            : (tensor<i32>) -> tensor<8xi32>
        %e = cirh.Gather %t, %i {axis = 0 : i64} : (tensor<50x4xf32>, tensor<8xi32>) -> tensor<8x4xf32>
        %r = cirh.Tanh %e : (tensor<8x4xf32>) -> tensor<8x4xf32>
        %g = cirh.Neg %r : (tensor<8x4xf32>) -> tensor<8x4xf32>
        %u, %n = cirh.Unique %i : (tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
        %s = cirh.ScatterNd %n, %g {reduce_kind = "ADD"} : (tensor<8xi32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        %c = cirh.Min %u, %lasts : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>
        %rt = cirh.Gather %t, %c {axis = 0 : i64} : (tensor<50x4xf32>, tensor<8xi32>) -> tensor<8x4xf32>
        %ra = cirh.Gather %a, %c {axis = 0 : i64} : (tensor<50x4xf32>, tensor<8xi32>) -> tensor<8x4xf32>
        %nt, %na = cirh.Momentum %rt, %ra, %lr, %s, %lr {use_nesterov = false}
            : (tensor<8x4xf32>, tensor<8x4xf32>, tensor<f32>, tensor<8x4xf32>, tensor<f32>)
            -> (tensor<8x4xf32>, tensor<8x4xf32>)
        %t1 = cirh.Scatter %t, %u, %nt {reduce_kind = "SET"}
            : (tensor<50x4xf32>, tensor<8xi32>, tensor<8x4xf32>) -> tensor<50x4xf32>
        %a1 = cirh.Scatter %a, %u, %na {reduce_kind = "SET"}
            : (tensor<50x4xf32>, tensor<8xi32>, tensor<8x4xf32>) -> tensor<50x4xf32>
        func.return %t1, %a1, %r : tensor<50x4xf32>, tensor<50x4xf32>, tensor<8x4xf32>
        """,
    )
    table, rest, *scalars = graph.kernels
    assert (table.family, rest.family, scalars) == ("embedding", "nlin", [])
    assert sorted(set(ops_of(rest))) == ["Neg", "Tanh"]
    assert ops_of(table).count("Gather") == 3
    assert ops_of(table).count("Scatter") == 2
    assert {"Unique", "ScatterNd", "Min", "Momentum"} <= set(ops_of(table))
    # Table, gradient and accumulator; the rule runs once a step, on eight rows of four.
    assert table.parameters["resident_bytes"] == pytest.approx(3 * 50 * 4 * 4, abs=16)
    assert place(graph, load_fabric()).target_cycles >= 1


def test_a_step_that_only_decays_a_parameter_places() -> None:
    graph = matched(
        '%t: tensor<50x4xf32> {tf.resource_name = "state.model.t", tf.aliasing_output = 0 : i64}',
        "tensor<50x4xf32>",
        """
        %h = cirh.Const dense<5.000000e-01> : tensor<50x4xf32>
        %n = cirh.Mul %t, %h : (tensor<50x4xf32>, tensor<50x4xf32>) -> tensor<50x4xf32>
        func.return %n : tensor<50x4xf32>
        """,
    )
    assert [ops_of(kernel) for kernel in graph.kernels] == [["Const", "Mul"]]
    assert graph.batch_size == 1
    assert place(graph, load_fabric()).target_cycles >= 1


def test_long_chains_are_cut_into_kernels_of_a_pipeline() -> None:
    chain = "\n".join(
        f"%v{i + 1} = cirh.Exp %v{i} : (tensor<8x6xf32>) -> tensor<8x6xf32>" for i in range(100)
    )
    graph = matched(
        '%v0: tensor<8x6xf32> {cs.input_name = "input_0"}',
        'tensor<8x6xf32> {cs.output_name = "output_y"}',
        f"{chain}\nfunc.return %v100 : tensor<8x6xf32>",
    )
    assert [kernel.name for kernel in graph.kernels] == ["exp1", "exp2"]
    assert all(kernel.generated for kernel in graph.kernels)


def test_empty_tensors_have_kernels() -> None:
    graph = matched(
        '%a: tensor<0x6xf32> {cs.input_name = "input_0"}',
        'tensor<0x6xf32> {cs.output_name = "output_y"}',
        """
        %y = cirh.Exp %a : (tensor<0x6xf32>) -> tensor<0x6xf32>
        func.return %y : tensor<0x6xf32>
        """,
    )
    assert place(graph, load_fabric()).active_pes == 1


def test_a_step_without_ops_is_refused() -> None:
    with pytest.raises(KernelGraphError, match="has no ops, expected at least one"):
        matched(
            '%a: tensor<4xf32> {cs.input_name = "input_0"}',
            'tensor<4xf32> {cs.output_name = "output_a"}',
            "func.return %a : tensor<4xf32>",
        )


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(KernelGraphError, match="kernel names fc occur twice"):
        KernelGraph((Kernel("fc", "elementwise", {}), Kernel("fc", "elementwise", {})))


def test_a_constant_that_two_kernels_share_is_no_stream_between_them() -> None:
    rows, square = "tensor<8x16xf32>", "tensor<16x16xf32>"
    product = f"{{transpose_a = false, transpose_b = false}} : ({rows}, {square}) -> {rows}"
    larger = f": ({rows}, {rows}) -> {rows}"
    graph = matched(
        f'%x : {rows} {{cs.input_name = "input_0"}}, %w : {square} {{tf.resource_name = "state.model.w"}}, '
        f'%v : {square} {{tf.resource_name = "state.model.v"}}',
        f'{rows} {{cs.output_name = "output_y"}}',
        f"""
        %half = cirh.Const dense<5.0e-01> : tensor<f32>
        %halves = cirh.BroadcastInDim %half {{broadcast_dimensions = array<i64>}} : (tensor<f32>) -> {rows}
        %a = cirh.MatMul %x, %w {product}
        %b = cirh.Max %a, %halves {larger}
        %c = cirh.MatMul %b, %v {product}
        %d = cirh.Max %c, %halves {larger}
        return %d : {rows}
        """,
        mode="infer",
    )
    order = [kernel.name for kernel in graph.kernels]
    assert len(order) >= 2
    assert all(order.index(edge.dst) == order.index(edge.src) + 1 for edge in graph.edges)
    assert all(edge.elements_per_sample == 16 for edge in graph.edges)


def test_a_number_that_two_kernels_repeat_is_not_held_repeated() -> None:
    """Each kernel gets the loss scale as one number, not as a tensor as large as all gradients of a batch."""
    rows = "tensor<4096x4096xf32>"
    sums = "tensor<4096x1xf32>"
    graph = matched(
        f'%x : {rows} {{cs.input_name = "input_0"}}, %s : tensor<f32> {{tf.resource_name = "state.model.s"}}',
        f'{rows} {{cs.output_name = "output_y"}}, {rows} {{cs.output_name = "output_z"}}',
        f"""
        %scales = cirh.BroadcastInDim %s {{broadcast_dimensions = array<i64>}} : (tensor<f32>) -> {rows}
        %a = cirh.Mul %x, %scales {{cs.layer = ["first"]}} : ({rows}, {rows}) -> {rows}
        %t = cirh.Reduce %a {{reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true,
          cs.layer = ["second"]}} : ({rows}) -> {sums}
        %b = cirh.BroadcastInDim %t {{broadcast_dimensions = array<i64: 0, 1>}} : ({sums}) -> {rows}
        %c = cirh.Div %b, %scales {{cs.layer = ["third"]}} : ({rows}, {rows}) -> {rows}
        return %a, %c : {rows}, {rows}
        """,
        mode="infer",
    )
    readers = [kernel for kernel in graph.kernels if {"Mul", "Div"} & set(ops_of(kernel))]
    assert len(readers) == 2
    placement = place(graph, load_fabric())
    for kernel in readers:
        layout = placement.layouts[kernel.name]
        assert layout.area * layout.memory_per_pe_bytes < 4096 * 4096 * 4 / 2


def test_all_optimizers_have_their_work_counted() -> None:
    """One that is not known would count as one simple operation for each element."""
    optimizers = ops.ops_where(lambda op: issubclass(op, OptimizerOp))
    kinds = {
        kind
        for kind in vars(ops).values()
        if isinstance(kind, type) and issubclass(kind, OptimizerOp) and "name" in vars(kind)
    }
    assert ops.AdamWOp in kinds
    assert kinds == optimizers
    assert all(op.TRAITS.work.simple > 1 for op in optimizers)
    # The decay is a product and a difference more.
    assert ops.AdamWOp.TRAITS.work == ops.AdamOp.TRAITS.work.with_simple(2)
