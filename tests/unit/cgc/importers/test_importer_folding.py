"""Expressions of known values: computed while importing, with TensorFlow's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from xdsl.dialects.func import ReturnOp

from cgc.cirh.ops import ConstOp
from cgc.importers.tensorflow import import_step
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
