"""Written-out layers are fused, and compute the same numbers before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from cgc.importers.tensorflow import import_keras_step
from cgc.lowering.interpret import step_function
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline
from models.common.tf.optimizers import AdamWOptimizer
from tests.programs.tf import fused_layers as p

ROWS: p.Input = ((3, 5, 8), tf.float32)
HEADS: p.Input = ((2, 3, 5, 4), tf.float32)
v1 = tf.compat.v1


def dense(x: Any) -> Any:
    """Two layers: a matrix and a vector to update in each."""
    hidden = tf.nn.relu(tf.matmul(x, p.variable("w1", [8, 6])) + p.variable("b1", [6]))
    return tf.reduce_mean(tf.square(tf.matmul(hidden, p.variable("w2", [6, 2])) + p.variable("b2", [2])))


def logits_loss(x: Any, labels: Any) -> Any:
    return p.one_hot_loss(tf.matmul(x, p.variable("w", [8, 7])), labels)


def written_out_softmax(x: Any) -> Any:
    powers = tf.exp(x - tf.stop_gradient(tf.reduce_max(x, -1, keepdims=True)))
    return powers / tf.reduce_sum(powers, -1, keepdims=True)


def position_sum(x: Any, rows: int) -> Any:
    """The last five rows of a table are used, as positions of a sequence select them."""
    return x + tf.gather(2.0 * p.variable("table", [rows, 8]), tf.range(rows - 5, rows))


def subtracted(form: p.Form, outside: bool) -> p.Form:
    """A form less than its input, or negated: the gradient that comes to the norm has another sign."""
    return (lambda x: x - form(x)) if outside else (lambda x: -form(x))


VECTORS: p.Input = ((3, 8), tf.float32)
LABELS: p.Input = ((3,), tf.int32)

CASES: dict[str, tuple[Callable[..., Any], Sequence[p.Input], dict[str, Any], dict[str, int]]] = {
    "layer_norm": (
        p.squares_of(p.LAYER_NORMS),
        [ROWS],
        {},
        {"LayerNorm": len(p.LAYER_NORMS), "LayerNormGrad": len(p.LAYER_NORMS), "Rsqrt": 0, "Sqrt": 0},
    ),
    **{
        f"subtracted_layer_norm_{outside}": (
            p.squares_of({name: subtracted(form, outside) for name, form in p.LAYER_NORMS.items()}),
            [ROWS],
            {},
            {"LayerNorm": len(p.LAYER_NORMS), "LayerNormGrad": len(p.LAYER_NORMS), "Rsqrt": 0, "Sqrt": 0},
        )
        for outside in (True, False)
    },
    "gelu": (
        p.squares_of(p.GELUS),
        [ROWS],
        {},
        {"Gelu": len(p.GELUS), "GeluGrad": len(p.GELUS), "Erf": 0, "Tanh": 0},
    ),
    "attention": (
        p.squares_of(p.ATTENTIONS),
        [HEADS],
        {},
        {"Attention": len(p.ATTENTIONS), "AttentionGrad": len(p.ATTENTIONS), "Softmax": 0},
    ),
    "keras_attention": (
        p.squares_of({"plain": p.keras_attention, "causal": lambda x: p.keras_attention(x, causal=True)}),
        [ROWS],
        {},
        {"Attention": 2, "AttentionGrad": 2, "Softmax": 0},
    ),
    "layer_norm_of_keras_2": (
        p.squares_of({"keras_2": lambda x: tf_keras.layers.LayerNormalization(epsilon=1e-3)(x)}),
        [ROWS],
        {},
        {"LayerNorm": 1, "LayerNormGrad": 1, "FusedBatchNorm": 0, "FusedBatchNormGrad": 0},
    ),
    "positions": (
        p.squares_of({"all": partial(position_sum, rows=5), "some": partial(position_sum, rows=9)}),
        [ROWS],
        {},
        {"Gather": 0, "ScatterNd": 0, "Slice": 1, "pad": 1},
    ),
    "softmax": (
        p.squares_of({"softmax": tf.nn.softmax, "written_out": written_out_softmax}),
        [ROWS],
        {"mode": "eval"},
        {"Softmax": 2, "Exp": 0},
    ),
    "softmax_gradient": (
        p.squares_of({"softmax": tf.nn.softmax}),
        [ROWS],
        {},
        {"Softmax": 1, "SoftmaxGrad": 1},
    ),
    "one_hot": (
        logits_loss,
        [VECTORS, LABELS],
        {},
        {"SparseSoftmaxCrossEntropyWithLogits": 1, "OneHot": 0, "LogSoftmax": 0},
    ),
    "clipped_adam": (
        dense,
        [VECTORS],
        {"optimizer": v1.train.AdamOptimizer(0.01), "clip": 0.5},
        {"L2Norm": 1, "Adam": 4},
    ),
    "adam_w": (dense, [VECTORS], {"optimizer": AdamWOptimizer(0.01, 0.1)}, {"AdamW": 4, "Adam": 0}),
    "bert_adam": (dense, [VECTORS], {"optimizer": p.BertAdam(0.01, 0.1)}, {"AdamW": 4, "Sqrt": 0}),
    "bert_adam_without_decay": (
        dense,
        [VECTORS],
        {"optimizer": p.BertAdam(0.01, 0.0)},
        {"Adam": 4, "Sqrt": 0},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_forms_are_found_and_numbers_stay(name: str) -> None:
    loss, inputs, options, expected = CASES[name]
    plain, fused = p.before_and_after(p.training_step(loss, inputs, **options))
    counts = p.op_counts(fused)
    assert {op: counts[op] for op in expected} == expected
    # 1 - beta2 of an op is that of beta2 in float32, 1e-5 away from the number that a program writes
    p.assert_same_numbers(plain, fused, limit=3e-5 if "bert_adam" in name else 5e-6)


@pytest.mark.parametrize("name", ["layer_norm", "gelu", "attention"])
def test_forms_are_found_where_constants_are_too_large_to_be_folded(name: str) -> None:
    loss, inputs, options, expected = CASES[name]
    module = p.training_step(loss, inputs, **options)
    run_pipeline(module, DEFAULT_PIPELINE.replace("constant-fold", "constant-fold{max-elements=1}"))
    counts = p.op_counts(module)
    assert {op: counts[op] for op in expected} == expected


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_keras_model_with_its_own_optimizer(causal: bool) -> None:
    keras.utils.set_random_seed(1)
    x = keras.Input((5, 8), batch_size=3)
    hidden = keras.layers.Dense(8, activation="gelu")(x)
    attended = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)(hidden, hidden, use_causal_mask=causal)
    model = keras.Model(x, keras.layers.LayerNormalization()(hidden + attended))
    model.compile(optimizer=keras.optimizers.AdamW(1e-3, global_clipnorm=1.0), loss="mse")
    spec = tf.TensorSpec((3, 5, 8), tf.float32)
    plain, fused = p.before_and_after(import_keras_step(model, (spec, spec)).module)
    counts = p.op_counts(fused)
    fused_ops = ("LayerNorm", "LayerNormGrad", "Attention", "AttentionGrad", "Gelu", "GeluGrad", "L2Norm")
    assert [counts[op] for op in fused_ops] == [1] * len(fused_ops)
    assert counts["AdamW"] == len(model.trainable_variables) == 12
    # repeated weights of einsum become one product of all rows with one matrix
    assert max(len(shape) for shape in matmul_shapes(fused)) == 2
    p.assert_same_numbers(plain, fused)


def matmul_shapes(module: Any) -> list[tuple[int, ...]]:
    return [op.results[0].type.get_shape() for op in module.walk() if op.name == "cirh.MatMul"]


def test_labels_out_of_range_still_count_for_nothing() -> None:
    """One-hot labels of -1 are zeros: the row has neither loss nor gradient."""
    plain, fused = p.before_and_after(p.training_step(logits_loss, [VECTORS, LABELS]))
    weights = np.random.default_rng(0).standard_normal((8, 7)).astype(np.float32)
    state = (np.int32(0), weights)
    inputs = (np.ones((3, 8), np.float32), np.array([-1, 2, 7], np.int32))
    expected, got = (jax.tree.leaves(jax.jit(step_function(m))(state, inputs)) for m in (plain, fused))
    for value, wanted in zip(got, expected, strict=True):
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
