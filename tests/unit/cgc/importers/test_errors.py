"""Graphs that cannot be compiled: one message that names every error, its place and advice."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.errors import DynamicShapeError, GraphImportError, GraphTypeError, UnsupportedOpsError
from cgc.importers.tensorflow import import_step

tf1 = tf.compat.v1


def refuse(
    graph: tf.Graph, error: type[GraphImportError], inputs: list[Any], *outputs: Any, **more: Any
) -> str:
    """Imports and returns the message of the expected error."""
    named = {f"y{i}": tensor for i, tensor in enumerate(outputs)}
    arguments = {"updates": [], "mode": "infer", "seed": 0, **more}
    with pytest.raises(GraphImportError) as caught:
        import_step(graph, inputs=inputs, outputs=named, **arguments)
    assert type(caught.value) is error
    assert caught.value.exit_code == 1
    return str(caught.value)


def test_all_unknown_ops_are_named_together_with_node_shape_and_line(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [4, 4])
    bessel = tf.math.bessel_i0e(x, name="bessel")
    spence = tf.math.special.spence(tf.math.bessel_i0e(bessel) + x, name="li")
    message = refuse(graph, UnsupportedOpsError, [x], spence)
    first, *lines = message.splitlines()
    assert first == "3 operations of the graph cannot be compiled:"
    here = f"line {__file__}:"
    assert [line.split(":")[0].strip() for line in lines] == [
        "BesselI0e",
        "BesselI0e",
        "Spence",
        "what to do",
    ]
    assert "node 'bessel/BesselI0e'" in lines[0]
    assert all(here in line for line in lines[:3])
    assert "result float32[4,4]" in lines[2]
    assert "input function" in lines[3]


def test_unknown_op_after_a_gradient_is_at_the_line_of_its_forward_op(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [4])
    y, line = tf.math.bessel_i0e(x) ** 2, inspect.currentframe().f_lineno
    message = refuse(graph, UnsupportedOpsError, [x], tf1.gradients(y, [x])[0])
    assert f"{__file__}:{line}" in message


def test_many_nodes_of_one_line_are_one_entry(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [4])
    for _ in range(5):
        x = tf.math.bessel_i0e(x)
    message = refuse(graph, UnsupportedOpsError, [], x)
    assert message.count("BesselI0e") == 2  # the type and the name of the first node
    assert "(5 such nodes)" in message


def test_loops_of_tensorflow_1_are_refused_with_advice(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [])
    tf1.disable_control_flow_v2()
    try:
        (y,) = tf.while_loop(lambda v: v < 10.0, lambda v: [v * 2.0], [x])
    finally:
        tf1.enable_control_flow_v2()
    message = refuse(graph, UnsupportedOpsError, [x], y)
    assert "Enter" in message
    assert "enable_control_flow_v2()" in message


def test_sizes_that_depend_on_data_are_refused_with_advice(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [8])
    message = refuse(graph, DynamicShapeError, [x], tf.boolean_mask(x, x > 0))
    assert "Where" in message
    assert "tf.where(condition, x, y)" in message


def test_arithmetic_on_joined_sparse_gradients_gives_advice(graph: tf.Graph) -> None:
    ids = tf1.placeholder(tf.int32, [8])
    table = tf1.get_variable("table", [11, 4])
    (gradient,) = tf1.gradients(tf.reduce_sum(tf.gather(table, ids)), [table])
    rows, numbers = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, numbers, tf.shape(rows)[0])
    message = refuse(graph, DynamicShapeError, [ids], tf.reduce_mean(sums, name="average"))
    assert "Mean: node 'average'" in message
    assert "tf.convert_to_tensor(gradient)" in message


def test_ref_variables_are_refused_with_advice(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [3])
    weight = tf1.get_variable("w", [3], use_resource=False)
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weight * x))
    message = refuse(graph, UnsupportedOpsError, [x], updates=[train], mode="train")
    assert "VariableV2: node 'w'" in message
    assert "tf.compat.v1.enable_resource_variables()" in message


def test_batches_of_open_size_say_drop_remainder(graph: tf.Graph) -> None:
    x, y = tf1.placeholder(tf.float32, [None, 784], "images"), tf1.placeholder(tf.int32, None, "labels")
    message = refuse(graph, DynamicShapeError, [x, y], tf.reduce_sum(x))
    assert message.startswith("2 tensors of the graph without a static shape:")
    assert "images:0 float32[?,784]" in message
    assert "labels:0 int32[shape unknown]" in message
    assert "drop_remainder=True" in message
    assert "set_shape()" in message


def test_shape_that_depends_on_data_names_the_tensor(graph: tf.Graph) -> None:
    x, n = tf1.placeholder(tf.float32, [6]), tf1.placeholder(tf.int32, [2], "sizes")
    message = refuse(graph, DynamicShapeError, [x, n], tf.reshape(x, n, name="turn"))
    assert "Reshape: node 'turn'" in message
    assert "its shape (sizes:0) depends on data of the run" in message


@pytest.mark.parametrize("dtype", ["float64", "int16", "complex64", "string"])
def test_input_of_a_type_that_the_device_lacks(dtype: str, graph: tf.Graph) -> None:
    x = tf1.placeholder(dtype, [8], "x")
    message = refuse(graph, GraphTypeError, [x], x)
    assert f"input x:0 {dtype}[8]" in message
    assert "tf.cast(x, tf.float32)" in message


def test_float64_is_reported_where_it_starts(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [8])
    wide = tf.cast(x, tf.float64, name="widen")
    message = refuse(graph, GraphTypeError, [x], tf.cast(tf.exp(wide) * 2 + 1, tf.float32))
    assert "Cast: node 'widen'" in message
    assert "float64[8]" in message
    assert "Exp" not in message


def test_float64_constant_and_variable(graph: tf.Graph) -> None:
    weight = tf1.get_variable("wide", [3], tf.float64)
    assert "variable wide" in refuse(graph, GraphTypeError, [], weight.read_value())
    assert "output y0" in refuse(graph, GraphTypeError, [], tf.constant(np.ones(3), name="ones"))


def test_a_float64_constant_that_is_cast_while_building_is_fine(graph: tf.Graph, compile_step: Any) -> None:
    y = tf.cast(tf.constant(np.arange(3.0)), tf.float32)
    step = import_step(graph, inputs=[], outputs={"y": y}, updates=[], mode="infer", seed=0)
    assert compile_step(step, {}, [()]).series("y").tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_constants_beyond_32_bits_name_the_value(value: int, graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.int64, [2])
    message = refuse(graph, GraphImportError, [x], tf.add(x, value, name="shift"))
    assert f"the constant contains {value}" in message
    assert "node 'shift'" in message


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31)])
def test_constants_at_the_edge_of_32_bits(value: int, graph: tf.Graph, compile_step: Any) -> None:
    x = tf1.placeholder(tf.int64, [])
    step = import_step(graph, inputs=[x], outputs={"y": x + value}, updates=[], mode="infer", seed=0)
    assert compile_step(step, {}, [(np.int64(0),)]).series("y").tolist() == [value]


def test_a_placeholder_that_no_batch_feeds(graph: tf.Graph) -> None:
    x, rate = tf1.placeholder(tf.float32, [8]), tf1.placeholder(tf.float32, [], "rate")
    message = refuse(graph, GraphImportError, [x], x * rate)
    assert "node 'rate'" in message
    assert "not an input of the step" in message


def test_errors_of_all_kinds_come_in_one_message(graph: tf.Graph) -> None:
    x, n = tf1.placeholder(tf.float32, [6]), tf1.placeholder(tf.int32, [1])
    outputs = (
        tf.math.bessel_i0e(x),
        tf.cast(x, tf.float64),
        tf.reshape(x, n),
        tf1.placeholder(tf.float32, []),
    )
    message = refuse(graph, UnsupportedOpsError, [x, n], *outputs)
    heads = [line for line in message.splitlines() if not line.startswith(" ")]
    assert [head.split(" of the graph ")[0].removesuffix(" in the graph:") for head in heads] == [
        "1 operation",
        "1 tensor",
        "1 tensor",
        "1 problem",
    ]


def test_an_output_without_a_value_on_the_device(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [])
    message = refuse(graph, GraphImportError, [x], tf1.summary.scalar("loss", x))
    assert "output y0: loss:0 string[] has no value on the device" in message


def test_unknown_mode(graph: tf.Graph) -> None:
    assert "mode is 'test', expected one of train, eval, infer" in refuse(
        graph, GraphImportError, [], mode="test"
    )


def test_a_result_of_an_iterator_that_no_batch_feeds(graph: tf.Graph) -> None:
    data = tf.data.Dataset.from_tensors((np.zeros(4, np.float32), np.zeros(4, np.float32)))
    features, labels = tf1.data.make_one_shot_iterator(data).get_next()
    message = refuse(graph, GraphImportError, [features], features + tf.identity(labels, name="labels"))
    assert "its input labels:0 has no value on the device; no batch feeds it" in message


def test_candidates_that_are_drawn_in_the_step_are_refused_with_advice(graph: tf.Graph) -> None:
    x, labels = tf1.placeholder(tf.float32, [4, 6]), tf1.placeholder(tf.int64, [4, 1])
    weights, biases = tf1.get_variable("w", [20, 6]), tf1.get_variable("b", [20])
    loss = tf.nn.sampled_softmax_loss(weights, biases, labels, x, 5, 20)
    message = refuse(graph, UnsupportedOpsError, [x, labels], loss)
    assert "LogUniformCandidateSampler" in message
    assert "sampled_values" in message
    assert "remove_accidental_hits=False" in message


def test_counts_of_numbers_without_a_bound(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.int32, [8])
    message = refuse(graph, DynamicShapeError, [x], tf.math.bincount(x, minlength=3))
    assert "minlength and maxlength of one value" in message


def test_a_derivative_of_higher_order_of_log_gamma(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [8])
    order = tf.constant(2.0, shape=[8])
    assert "its order is 2, expected 1" in refuse(graph, GraphImportError, [x], tf.math.polygamma(order, x))


def test_parts_of_a_size_that_depends_on_the_data(graph: tf.Graph) -> None:
    x, numbers = tf1.placeholder(tf.float32, [6]), tf1.placeholder(tf.int32, [6])
    message = refuse(graph, DynamicShapeError, [x, numbers], tf.dynamic_partition(x, numbers, 2)[1])
    assert "the number of rows of each part depends on the data" in message
