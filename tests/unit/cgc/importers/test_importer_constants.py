"""What depends on constants alone, of any size and type: with TensorFlow's results, and in little space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh.ops import ConstOp
from cgc.errors import GraphImportError, GraphTypeError
from cgc.importers.tensorflow import constant_folding, import_step

tf1 = tf.compat.v1

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


EXPRESSIONS: dict[str, Callable[[], Any]] = {
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


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_constants_of_any_size(name: str, graph: tf.Graph, both_ways: Callable[..., Any]) -> None:
    x = tf1.placeholder(tf.float32, [], "x")
    y = EXPRESSIONS[name]()
    ran = both_ways([x], {"y": tf.cast(y, tf.float32) + x}, [], [[np.float32(0)]], mode="infer")
    np.testing.assert_array_equal(ran.compiled.series("y"), ran.session.series("y"))


def test_float64_in_a_function(graph: tf.Graph, both_ways: Callable[..., Any]) -> None:
    """What an argument was made of is known behind the call as well."""

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


def test_what_repeats_is_there_once(graph: tf.Graph) -> None:
    ramp = tf.constant(np.arange(50.0)[None, :, None])
    assert elements(graph, tf.cast(ramp * tf.ones([64, 1, 128], tf.float64), tf.float32)) == 50


def test_what_the_device_can_compute_stays_an_operation(graph: tf.Graph) -> None:
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


def test_what_tensorflow_refuses_is_a_fault_of_the_node(graph: tf.Graph) -> None:
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
