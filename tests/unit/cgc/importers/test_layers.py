"""The layers of imported ops, from TensorFlow's and Keras' scopes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.base import LAYER, CirhOp, LayerPath, mnemonic
from cgc.importers.tensorflow import import_keras_step, import_step
from cgc.importers.tensorflow.origin import layer_of

tf1 = tf.compat.v1
layers = tf.keras.layers


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("MatMul", ()),
        ("encoder/dense/MatMul", ("encoder", "dense")),
        ("encoder/dense/Tensordot/MatMul", ("encoder", "dense")),
        ("dense/dense/MatMul", ("dense",)),
        ("ln/batchnorm/sub", ("ln",)),
        ("gradients/ln/moments/mean_grad/Mul", ("ln",)),
        ("train/gradients_1/dense/MatMul_grad/MatMul", ("dense",)),
        ("train/gradients/AddN", ()),
        ("gradient_tape/model/dense/Reshape_1", ("model", "dense")),
        ("gradients_of_the_user/dense/MatMul", ("gradients_of_the_user", "dense")),
        ("loss/xentropy/SparseSoftmaxCrossEntropyWithLogits/x", ("loss",)),
    ],
)
def test_layers_by_name(name: str, layer: LayerPath) -> None:
    assert layer_of(SimpleNamespace(name=name, type=name.rpartition("/")[2], graph=tf.Graph())) == layer


def made_in(module: ModuleOp) -> dict[LayerPath, list[str]]:
    """Every layer is imported as its ops, and every op names its layer."""
    found = defaultdict(list)
    for op in module.walk():
        if isinstance(op, CirhOp):
            assert LAYER in op.attributes, op
            found[op.layer].append(mnemonic(type(op)))
    return found


def imported(graph: tf.Graph, hidden: Callable[[Any, Any], Any]) -> dict[LayerPath, list[str]]:
    """A step of gradient descent in a separate scope."""
    x, w = tf1.placeholder(tf.float32, [8, 6]), tf1.get_variable("w", [6, 6])
    loss = tf.reduce_sum(hidden(x, w) ** 2)
    with tf.name_scope("train"):
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    step = import_step(graph, inputs=[x], outputs={"loss": loss}, updates=[train], mode="train", seed=0)
    return made_in(step.module)


def cell(x: Any, w: Any) -> Any:
    with tf.name_scope("cell"):
        return tf.tanh(x @ w)


def norm(x: Any) -> Any:
    with tf.name_scope("norm"):
        mean, variance = tf.nn.moments(x, [1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-5)


def test_backward_ops_are_of_the_layer_of_their_forward_op(graph: tf.Graph) -> None:
    found = imported(graph, lambda x, w: norm(cell(x, w)))
    assert sorted(found[("cell",)]) == ["MatMul", "MatMul", "MatMul", "Tanh", "TanhGrad"]
    assert {"Rsqrt", "Neg"} <= set(found[("norm",)])
    assert set(found) == {(), ("cell",), ("norm",), ("train", "GradientDescent", "update_w")}


def test_in_branches_and_functions_as_well(graph: tf.Graph) -> None:
    def branches(x: Any, w: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: cell(x, w), lambda: norm(x @ w))

    found = imported(graph, lambda x, w: tf.function(cell)(branches(x, w), w))
    assert sorted(found["cond[0]", "cell"]) == ["MatMul", "MatMul", "MatMul", "Tanh", "TanhGrad"]
    assert {"Rsqrt", "Neg"} <= set(found["cond[1]", "norm"])
    (called,) = (made for path, made in found.items() if path[1:] == ("cell",) and "Call" in path[0])
    assert sorted(called) == ["MatMul", "MatMul", "MatMul", "Tanh", "TanhGrad"]
    assert not any("grad" in name for path in found for name in path)


def test_every_turn_of_a_loop_is_by_itself(graph: tf.Graph) -> None:
    found = imported(
        graph, lambda x, w: tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, cell(h, w)), [0, x])[1]
    )
    forward = {("while[0]", "cell"), ("while[1]", "cell")}
    assert all(found[path] == ["MatMul", "Tanh"] for path in forward)
    backward = {path for path in found if "TanhGrad" in found[path]}
    assert len(backward) == 2
    assert not backward & forward


def test_a_keras_step_has_the_layers_of_keras() -> None:
    """The tape of a `train_step` names the forward operation in the scope of each backward operation."""
    tf.keras.utils.clear_session(free_memory=False)
    model = tf.keras.Sequential(
        [layers.Dense(16, activation="gelu", name="first"), layers.LayerNormalization(), layers.Dense(5)],
        name="net",
    )
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    specs = tf.TensorSpec([8, 20]), tf.TensorSpec([8], tf.int32)
    found: dict[LayerPath, list[str]] = defaultdict(list)
    for path, made in made_in(import_keras_step(model, specs).module).items():
        # The second use of a name has a number: the first was that of the trace that made the variables.
        found[tuple(name.removesuffix("_1") for name in path)] += made
    assert [path for path in found if path[:1] == ("net",)] == [
        ("net", "first"),
        ("net", "first", "Gelu"),
        ("net", "layer_normalization"),
        ("net", "dense"),
    ]
    assert sorted(found["net", "first"]) == ["BiasAdd", "BiasAddGrad", "MatMul", "MatMul"]
    assert sorted(found["net", "dense"]) == ["BiasAdd", "BiasAddGrad", "MatMul", "MatMul", "MatMul"]
    assert {"Rsqrt", "Neg"} <= set(found["net", "layer_normalization"])
