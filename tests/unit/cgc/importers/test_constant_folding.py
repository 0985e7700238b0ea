"""Constant folding while a graph is imported: by numpy, and by TensorFlow itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from xdsl.dialects.func import ReturnOp

from cgc.cirh.ops import ConstOp
from cgc.errors import GraphImportError, GraphTypeError
from cgc.importers.tensorflow import constant_folding, import_step
from cgc.importers.tensorflow.constant_folding import FOLD_LIMIT

tf1 = tf.compat.v1
raw = tf.raw_ops


def ints(*values: Any) -> Any:
    return tf.constant(values, tf.int32)


def matrix() -> Any:
    return tf.constant(np.arange(12).reshape(3, 4), tf.int32)


EXPRESSIONS: dict[str, Callable[[], Any]] = {
    "arithmetic": lambda: (ints(7, -7) * 2 - 3) + ints(1, 2),
    "floor_division": lambda: ints(7, -7) // 2,
    "floor_mod": lambda: ints(7, -7) % 3,
    "extremes": lambda: [tf.maximum(ints(1, 5), 3), tf.minimum(ints(1, 5), 3)],
    "floats": lambda: tf.sqrt(tf.square(tf.constant([1.5, 2.0])) / 4.0) - tf.abs(tf.constant(-0.25)),
    "power": lambda: tf.pow(tf.constant([2.0, 3.0]), 3.0),
    "reciprocal": lambda: tf.math.reciprocal(tf.constant([2.0, 8.0])),
    "rounding": lambda: [tf.floor(tf.constant(-1.5)), tf.math.ceil(tf.constant(-1.5))],
    "comparisons": lambda: [op(ints(1, 2, 3), 2) for op in (tf.less, tf.less_equal, tf.equal, tf.not_equal)],
    "greater": lambda: [tf.greater(ints(1, 2, 3), 2), tf.greater_equal(ints(1, 2, 3), 2)],
    "logic": lambda: tf.logical_or(tf.logical_and(True, False), tf.logical_not(False)),
    "select": lambda: tf.where(tf.constant([True, False]), ints(1, 2), 9),
    "sums": lambda: [tf.reduce_sum(matrix(), axis=1), tf.reduce_prod(ints(2, 3, 4), keepdims=True)],
    "bounds": lambda: [tf.reduce_max(matrix(), axis=0), tf.reduce_min(matrix())],
    "quantifiers": lambda: [tf.reduce_all(matrix() > 0), tf.reduce_any(matrix() > 10, axis=0)],
    "stack": lambda: tf.unstack(tf.stack([ints(1, 2), ints(3, 4)], axis=1), axis=0),
    "concat": lambda: tf.concat([ints(1, 2), ints(3)], axis=0),
    "concat_v1": lambda: raw.Concat(concat_dim=0, values=[ints(1, 2), ints(3)]),
    "concat_offset": lambda: raw.ConcatOffset(concat_dim=1, shape=[ints(2, 3), ints(2, 5), ints(2, 1)]),
    "split": lambda: tf.split(matrix(), 2, axis=1),
    "strided_slice": lambda: matrix()[::-2, 1:3],
    "index": lambda: matrix()[1, -1],
    "slice": lambda: tf.slice(matrix(), [1, 1], [-1, 2]),
    "gather": lambda: [tf.gather(matrix(), [2, 0]), tf.gather(matrix(), 1, axis=1)],
    "shape_changes": lambda: tf.squeeze(tf.expand_dims(tf.reshape(matrix(), [4, 3]), 0)),
    "transpose": lambda: tf.transpose(matrix()),
    "tile": lambda: tf.tile(ints(1, 2), [3]),
    "fill": lambda: tf.fill([2, 2], 7) + tf.zeros_like(ints(1, 1)) + tf.ones_like(ints(1, 1)),
    "broadcast": lambda: tf.broadcast_to(ints(1, 2), [2, 2]),
    "range": lambda: tf.range(3, 12, 4),
    "permutation": lambda: tf.math.invert_permutation(ints(2, 0, 1)),
    "broadcast_shapes": lambda: tf.broadcast_dynamic_shape(ints(3, 1), ints(4)),
    "gradient_axes": lambda: raw.BroadcastGradientArgs(s0=ints(3, 1, 4), s1=ints(2, 4)),
    "stitch": lambda: tf.dynamic_stitch([ints(0, 2), ints(1)], [ints(10, 30), ints(20)]),
    "list_diff": lambda: raw.ListDiff(x=ints(1, 2, 3, 4), y=ints(2, 4)),
    "cast": lambda: tf.cast(tf.cast(tf.constant([1.7, -1.7]), tf.int32), tf.float32),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_known_expressions_become_constants(name: str, graph: tf.Graph) -> None:
    results = EXPRESSIONS[name]()
    tensors = list(results) if isinstance(results, list | tuple) else [results]
    outputs = {str(i): tf.identity(tensor) for i, tensor in enumerate(tensors)}
    imported = import_step(graph, inputs=[], outputs=outputs, updates=[], mode="infer", seed=0)
    (terminator,) = [op for op in imported.module.walk() if isinstance(op, ReturnOp)]
    constants = [operand.owner for operand in terminator.operands]
    with tf1.Session() as session:
        expected = session.run(outputs)
    for key, constant in zip(expected, constants, strict=True):
        assert isinstance(constant, ConstOp)
        assert constant.to_array().dtype == expected[key].dtype
        np.testing.assert_array_equal(constant.to_array(), expected[key])


def test_large_results_stay_operations(graph: tf.Graph) -> None:
    size = FOLD_LIMIT + 1
    imported = import_step(
        graph, inputs=[], outputs={"y": tf.fill([size], 2.0)}, updates=[], mode="infer", seed=0
    )
    constants = [op for op in imported.module.walk() if isinstance(op, ConstOp)]
    assert [op.to_array().size for op in constants] == [1]


SIZE = 96  # squared more than FOLD_LIMIT


def distances() -> Any:
    """Integers [SIZE, SIZE]: how far apart two positions are."""
    return tf.range(SIZE)[None, :] - tf.range(SIZE)[:, None]


def complex_turns() -> Any:
    """The cosines of rotary positions, by way of complex numbers."""
    angles = tf.cast(distances(), tf.float64) / 100
    return tf.cast(tf.math.real(tf.exp(tf.complex(tf.zeros_like(angles), angles))), tf.float32)


def buckets() -> Any:
    """Relative positions in logarithmic buckets; the quotient of integers is float64."""
    far = tf.abs(distances())
    log = tf.math.log(tf.maximum(far, 1) / 8) / np.log(128 / 8) * 8
    return tf.where(far < 8, far, tf.minimum(8 + tf.cast(log, tf.int32), 15))


HOST_EXPRESSIONS: dict[str, Callable[[], Any]] = {
    "quotient": lambda: tf.cast(distances() / 7, tf.float32),
    "buckets": buckets,
    "sines": lambda: tf.cast(tf.sin(np.outer(np.arange(SIZE), np.geomspace(1, 1e-4, SIZE))), tf.float32),
    "few sines": lambda: tf.cast(tf.sin(tf.constant([0.1, 0.2], tf.float64)), tf.float32),
    "table of numpy": lambda: tf.cast(tf.constant(np.linspace(0, 1, 70 * 70).reshape(70, 70)), tf.float32),
    "complex": complex_turns,
    "product": lambda: tf.cast(tf.matmul(tf.eye(SIZE, dtype=tf.float64), distances() / 3), tf.float32),
    "choice": lambda: tf.cast(tf.argmax(distances() / 3 * tf.cast(-1, tf.float64), axis=1), tf.int32),
    "one hot": lambda: tf.cast(tf.one_hot(tf.range(SIZE), SIZE, dtype=tf.float64), tf.float32),
    "narrow": lambda: tf.cast(tf.cast(distances(), tf.int16) * 300, tf.float32),
    "comparison": lambda: tf.cast(distances() / 3 > 1, tf.float32),
    "operation that only numpy has": lambda: tf.math.invert_permutation(tf.range(5000)[::-1]),
    "operation that only TensorFlow has": lambda: (
        tf.linalg.band_part(tf.cast(distances(), tf.int16), 1, 1) == 0
    ),
}


@pytest.mark.parametrize("name", HOST_EXPRESSIONS)
def test_constants_of_any_size(name: str, graph: tf.Graph, both_ways: Callable[..., Any]) -> None:
    x = tf1.placeholder(tf.float32, [], "x")
    y = HOST_EXPRESSIONS[name]()
    ran = both_ways([x], {"y": tf.cast(y, tf.float32) + x}, [], [[np.float32(0)]], mode="infer")
    np.testing.assert_array_equal(ran.compiled.series("y"), ran.session.series("y"))


def test_float64_in_a_function(graph: tf.Graph, both_ways: Callable[..., Any]) -> None:
    """The origin of an argument is known after the call as well."""

    @tf.function(autograph=False)
    def scaled(x: Any, apart: Any) -> Any:
        return x * tf.cast(apart / 7, tf.float32)

    x = tf1.placeholder(tf.float32, [], "x")
    ran = both_ways([x], {"y": scaled(x, distances())}, [], [[np.float32(2)]], mode="infer")
    np.testing.assert_array_equal(ran.compiled.series("y"), ran.session.series("y"))


def elements(graph: tf.Graph, y: Any) -> int:
    """Elements of all constants of a step."""
    imported = import_step(graph, inputs=[], outputs={"y": y}, updates=[], mode="infer", seed=0)
    return sum(op.to_array().size for op in imported.module.walk() if isinstance(op, ConstOp))


def test_repeated_layers_exist_once(graph: tf.Graph) -> None:
    ramp = tf.constant(np.arange(50.0)[None, :, None])
    assert elements(graph, tf.cast(ramp * tf.ones([64, 1, 128], tf.float64), tf.float32)) == 50


def test_ops_that_the_device_can_compute_are_not_folded(graph: tf.Graph) -> None:
    """The table of distances is not in the step, though float64 is made of it as well."""
    y = tf.stack([tf.cast(distances(), tf.float32), tf.cast(distances() / 7 > 1, tf.float32)])
    assert elements(graph, y) < SIZE * SIZE + 5 * SIZE


def test_a_constant_beyond_all_limits_is_refused(graph: tf.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_folding, "MOST_ELEMENTS", SIZE * SIZE - 1)
    with pytest.raises(GraphTypeError, match=r"sub:0 int32\[96,96\], a constant of more than 9,215 elements"):
        elements(graph, tf.cast(distances() / 7, tf.float32))


def test_data_in_float64_is_refused_as_before(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.int32, [3], "x")
    picked = tf.cast(tf.gather(tf.constant(np.arange(9.0)), x, name="pick"), tf.float32)
    with pytest.raises(GraphImportError, match=r"GatherV2: node 'pick'.*float64\[3\]"):
        import_step(graph, inputs=[x], outputs={"y": picked}, updates=[], mode="infer", seed=0)


def test_an_error_of_tensorflow_is_reported_at_the_node(graph: tf.Graph) -> None:
    table = tf.gather(tf.constant(np.arange(9.0)), tf.range(5000), name="pick")
    with pytest.raises(GraphImportError, match=r"indices\[9\] = 9 is not in \[0, 9\)"):
        elements(graph, tf.cast(table, tf.float32))


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "decay": lambda step: 0.1 * tf.pow(tf.constant(0.96, tf.float64), step / 10),
    "cosine": lambda step: 0.05 * (1 + tf.cos(np.pi * (tf.minimum(step, 40) / 40))),
    "stairs": lambda step: tf.where(step / 20 < 0.5, tf.constant(0.1, tf.float64), 0.01),
    "warm up": lambda step: tf.minimum(step / 8, tf.math.rsqrt((step + 1) / 64)) / 100,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_in_float64(name: str, graph: tf.Graph, both_ways: Callable[..., Any]) -> None:
    """The number of the step is an integer, and divided by an integer it is float64."""
    x = tf1.placeholder(tf.float32, [3], "x")
    weight = tf1.get_variable("weight", [3], initializer=tf1.ones_initializer())
    step = tf1.train.get_or_create_global_step()
    rate = SCHEDULES[name](step)
    assert rate.dtype == tf.float64
    optimizer = tf1.train.GradientDescentOptimizer(tf.cast(rate, tf.float32))
    update = optimizer.minimize(tf.reduce_sum(tf.square(weight * x)), step)
    batches = [[np.float32([i, 1, 2])] for i in range(12)]
    ran = both_ways([x], {"rate": tf.cast(rate, tf.float32)}, [update], batches)
    np.testing.assert_allclose(ran.compiled.series("rate"), ran.session.series("rate"), rtol=1e-6)
    np.testing.assert_allclose(ran.compiled.variables["weight"], ran.session.variables["weight"], rtol=1e-5)


def test_float64_of_other_variables_is_refused(graph: tf.Graph) -> None:
    weight = tf1.get_variable("weight", [3], initializer=tf1.ones_initializer())
    with pytest.raises(GraphTypeError, match=r"Cast: node 'wide'.*float64\[3\]"):
        elements(graph, tf.cast(tf.cast(weight.read_value(), tf.float64, name="wide") / 3, tf.float32))


SIZES: dict[str, Callable[[Any], Any]] = {
    "mask": lambda x: tf.boolean_mask(x, tf.equal(tf.range(5000) % 3, 0)),
    "segments": lambda x: tf.math.segment_sum(x, tf.range(5000) // 7),
    "turned": lambda x: tf.gather(x, tf.math.invert_permutation(tf.range(5000)[::-1])),
    "places": lambda x: tf.gather_nd(x, tf.where(tf.range(5000) / 3 > 1000)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_depend_on_large_constants(
    name: str, graph: tf.Graph, both_ways: Callable[..., Any]
) -> None:
    x = tf1.placeholder(tf.float32, [5000], "x")
    batch = np.arange(5000, dtype=np.float32)
    ran = both_ways([x], {"y": SIZES[name](x)}, [], [[batch]], mode="infer")
    np.testing.assert_allclose(ran.compiled.series("y"), ran.session.series("y"), rtol=1e-6)
