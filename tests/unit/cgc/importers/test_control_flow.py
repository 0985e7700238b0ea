"""Branches, loops and lists of tensors, with their gradients, against a session."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.errors import DynamicShapeError, GraphImportError
from cgc.importers.tensorflow import import_step
from cgc.importers.tensorflow.handlers.control_flow import ITERATIONS_LIMIT

tf1 = tf.compat.v1
Program = Callable[[Any, Any], Any]
PROGRAMS: dict[str, Program] = {}


def program(build: Program) -> Program:
    """Registers hidden(x [8, 6], weight [6, 6]) -> [8, 6], what is between two layers."""
    PROGRAMS[build.__name__] = build
    return build


def global_step() -> Any:
    return tf1.train.get_or_create_global_step()


def counter() -> Any:
    return tf1.get_variable("counter", [], initializer=tf1.zeros_initializer(), trainable=False)


@program
def branches_with_different_intermediates(x: Any, w: Any) -> Any:
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.tanh(x @ w) * 2.0, lambda: tf.nn.relu(x) @ w + tf.exp(-(x**2))
    )


@program
def branches_in_branches(x: Any, w: Any) -> Any:
    total = tf.reduce_sum(x)
    return tf.cond(
        total > 0,
        lambda: tf.cond(total > 3, lambda: tf.sin(x @ w), lambda: 2.0 * (x @ w)),
        lambda: tf.nn.elu(x @ w),
    )


@program
def one_of_three_functions(x: Any, w: Any) -> Any:
    index = tf.cast(global_step() % 4, tf.int32)  # 3 has no function: the last one is taken
    return tf.switch_case(index, [lambda: x @ w, lambda: tf.tanh(x @ w), lambda: tf.sin(x @ w) * 2.0])


@program
def assignments_in_branches(x: Any, w: Any) -> Any:
    count = counter()
    change = tf.cond(
        tf.reduce_sum(x) > 0,
        lambda: tf.group(count.assign_add(1.0)),
        lambda: tf.group(count.assign(count * 0.5)),
    )
    with tf.control_dependencies([change]):
        return x @ w + count.read_value()


@program
def loop(x: Any, w: Any) -> Any:
    return tf.while_loop(lambda i, h: i < 4, lambda i, h: (i + 1, tf.tanh(h @ w)), [0, x])[1]


@program
def loop_in_a_loop(x: Any, w: Any) -> Any:
    def body(i: Any, h: Any) -> Any:
        inner = tf.while_loop(lambda j, g: j < i, lambda j, g: (j + 1, tf.tanh(g @ w)), [0, h])
        return i + 1, inner[1]

    return tf.while_loop(lambda i, h: i < 3, body, [0, x])[1]


@program
def branch_in_a_loop(x: Any, w: Any) -> Any:
    def body(i: Any, h: Any) -> Any:
        return i + 1, tf.cond(tf.reduce_sum(h) > 0, lambda: tf.tanh(h @ w) * 2.0, lambda: tf.sin(h @ w) - h)

    return tf.while_loop(lambda i, h: i < 3, body, [0, x])[1]


@program
def loop_in_a_branch(x: Any, w: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: loop(x, w), lambda: x @ w)


@program
def tensor_array(x: Any, w: Any) -> Any:
    def body(i: Any, h: Any, array: Any) -> Any:
        h = tf.tanh(h @ w)
        return i + 1, h, array.write(i, h)

    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    _, _, array = tf.while_loop(lambda i, h, a: i < 3, body, [0, x, array])
    return tf.reduce_mean(array.stack(), 0) + array.read(1) + array.concat()[:8]


@program
def map_and_scan(x: Any, w: Any) -> Any:
    rows = tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(w, row)), x)
    return tf.scan(lambda carried, row: tf.tanh(carried + row), rows)


@program
def loop_that_data_ends(x: Any, w: Any) -> Any:
    return tf.while_loop(
        lambda i, h: tf.reduce_sum(h * h) > 1.0,
        lambda i, h: (i + 1, tf.tanh(h @ w)),
        [0, x],
        maximum_iterations=6,
    )[1]


@program
def loop_whose_turns_after_the_end_are_not_finite(x: Any, w: Any) -> Any:
    def body(h: Any) -> Any:
        return h / (tf.reduce_max(h) - 0.4) - 1.0

    return tf.while_loop(
        lambda h: tf.reduce_max(h) > 0.5, lambda h: (body(h),), [tf.nn.relu(x @ w)], maximum_iterations=6
    )[0]


@program
def loop_that_data_ends_with_branches_and_assignments(x: Any, w: Any) -> Any:
    count = counter()

    def body(h: Any) -> Any:
        with tf.control_dependencies([count.assign_add(1.0)]):
            return tf.cond(
                tf.reduce_sum(h) > 0, lambda: tf.tanh(h @ w) * 0.9, lambda: tf.sin(h @ w) - 0.1 * h
            )

    h = tf.while_loop(lambda h: tf.reduce_sum(h * h) > 2.0, lambda h: (body(h),), [x], maximum_iterations=4)[
        0
    ]
    with tf.control_dependencies([h]):
        return h + 0.1 * count.read_value()


@program
def sequences_of_different_lengths(x: Any, w: Any) -> Any:
    """As in tf.compat.v1.nn.dynamic_rnn, the longest sequence determines the number of iterations."""
    lengths = tf.reduce_sum(tf.cast(x[:, :2] > 0.8, tf.int32), 1) + 1
    array = tf.TensorArray(tf.float32, size=5, element_shape=[8, 6])

    def body(i: Any, h: Any, array: Any) -> Any:
        h = tf.where((i < lengths)[:, None], tf.tanh(h @ w), h)
        return i + 1, h, array.write(i, h)

    end = tf.reduce_max(lengths)
    _, h, array = tf.while_loop(lambda i, h, a: i < end, body, [0, x, array], maximum_iterations=5)
    return h + tf.reduce_mean(array.stack(), 0)


@program
def function_with_python_loops_and_branches(x: Any, w: Any) -> Any:
    @tf.function
    def called(h: Any) -> Any:
        for _ in tf.range(3):
            h = tf.nn.relu(h) + 0.1 * h
        if tf.reduce_sum(h) > 0:
            h = h * 2.0
        return h

    return called(x @ w) + called(x)


@program
def custom_gradient_and_recomputation(x: Any, w: Any) -> Any:
    @tf.custom_gradient
    def clipped(z: Any) -> Any:
        return tf.sign(z), lambda upstream: tf.clip_by_value(upstream, -0.01, 0.01)

    layer = tf.recompute_grad(lambda h: tf.tanh(h @ w))
    return clipped(layer(layer(x))) + layer(x)


def batches(count: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        (rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8).astype(np.int32))
        for _ in range(count)
    ]


SLOW = ("branches_in_branches", "loop_in_a_branch", "loop_that_data_ends", "loop_in_a_loop")
"""What other programs try as well, in part."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in SLOW else []) for name in PROGRAMS]
)
def test_trains_as_in_a_session(name: str, both_ways: Any) -> None:
    x, y = tf1.placeholder(tf.float32, [8, 6], "x"), tf1.placeholder(tf.int32, [8], "y")
    weight = tf1.get_variable("w", [6, 6], initializer=tf1.random_normal_initializer(stddev=0.4, seed=2))
    out = tf1.get_variable("out", [6, 3], initializer=tf1.random_normal_initializer(stddev=0.4, seed=3))
    logits = PROGRAMS[name](x, weight) @ out
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=global_step())
    run = both_ways([x, y], {"loss": loss}, [train], batches())
    np.testing.assert_allclose(run.compiled.series("loss"), run.session.series("loss"), rtol=1e-5)
    assert np.isfinite(run.compiled.series("loss")).all()
    for variable, value in run.compiled.variables.items():
        np.testing.assert_allclose(value, run.session.variables[variable], rtol=1e-4, atol=1e-5)


def test_loops_and_calls_draw_other_numbers_every_time(graph: tf.Graph, compile_step: Any) -> None:
    @tf.function
    def noise() -> Any:
        return tf.random.uniform([50], seed=4)

    def body(i: Any, drawn: Any) -> Any:
        return i + 1, drawn.write(i, tf.random.uniform([50]))

    array = tf.TensorArray(tf.float32, size=3, element_shape=[50])
    _, array = tf.while_loop(lambda i, a: i < 3, body, [0, array])
    drawn = tf.concat([array.stack(), [noise()], [noise()]], 0)
    imported = import_step(graph, inputs=[], outputs={"drawn": drawn}, updates=[], mode="infer", seed=0)
    (rows,) = compile_step(imported, {}, [()]).series("drawn")
    for i in range(5):
        for j in range(i):
            assert (rows[i] != rows[j]).mean() > 0.9


def refusal(graph: tf.Graph, inputs: list[Any], output: Any) -> GraphImportError:
    with pytest.raises(GraphImportError) as caught:
        import_step(graph, inputs=inputs, outputs={"y": output}, updates=[], mode="infer", seed=0)
    return caught.value


def test_loops_that_data_ends_and_other_errors_are_refused_together(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [8, 6], "x")
    (halved,) = tf.while_loop(lambda h: tf.reduce_sum(h) > 1.0, lambda h: (h / 2.0,), [x], name="halving")
    line = inspect.currentframe().f_lineno - 1
    called = tf.numpy_function(np.sin, [x], tf.float32, name="call")
    called.set_shape([8, 6])
    message = str(refusal(graph, [x], halved + called))
    assert "PyFunc: node 'call'" in message
    assert "input function" in message
    assert f"node 'halving', line {__file__}:{line}, result " in message
    assert "float32[8,6]" in message
    assert "maximum_iterations" in message


def test_a_branch_that_takes_strings_is_refused_with_its_node(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [8], "x")

    def text() -> Any:
        return tf.strings.length(tf.strings.as_string(x, name="text"))

    chosen = tf.cond(tf.reduce_sum(x) > 0, text, lambda: tf.zeros([8], tf.int32))
    message = str(refusal(graph, [x], chosen))
    assert "AsString: node 'text'" in message
    assert f"line {__file__}:" in message


def test_unknown_ops_in_python_loops_of_functions_are_at_their_lines(graph: tf.Graph) -> None:
    @tf.function
    def called(h: Any) -> Any:
        for _ in tf.range(2):
            h = tf.math.bessel_i0e(h)
        return h

    line = inspect.getsourcelines(called.python_function)[1] + 3
    x = tf1.placeholder(tf.float32, [8], "x")
    message = str(refusal(graph, [x], called(x)))
    assert f"BesselI0e: node 'bessel_i0e/BesselI0e', line {__file__}:{line}, result float32[8]" in message


def test_too_many_turns_are_refused(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [], "x")
    y = tf.while_loop(lambda i, h: i < ITERATIONS_LIMIT + 1, lambda i, h: (i + 1, h), [0, x])[1]
    assert f"more than {ITERATIONS_LIMIT} times" in str(refusal(graph, [x], y))


def test_a_list_of_as_many_tensors_as_data_decides_is_refused(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [8], "x")
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[8])
    end = tf.cast(tf.reduce_sum(x), tf.int32)
    _, array = tf.while_loop(
        lambda i, a: i < end, lambda i, a: (i + 1, a.write(i, x)), [0, array], maximum_iterations=4
    )
    error = refusal(graph, [x], array.stack())
    assert isinstance(error, DynamicShapeError)
    assert "give the tf.TensorArray a size" in str(error)


def test_branches_of_different_shapes_are_refused(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [8], "x")
    chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: x[:4], lambda: x[:2])
    assert "a size that depends on the data" in str(refusal(graph, [x], tf.reduce_sum(chosen)))
