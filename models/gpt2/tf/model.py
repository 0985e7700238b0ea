"""GPT-2 (Radford et al. 2019): a causal language model with one table for embedding and output."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from estimator import EstimatorSpec, ModeKeys
from models.common.tf.layers import ACTIVATIONS, dropout, embedding_table, layer_norm
from models.common.tf.optimizers import minimize
from models.common.tf.transformer import BlockShape, block, causal_bias

v1 = tf.compat.v1


def block_shape(model: dict[str, Any], *, training: bool) -> BlockShape:
    """Return the shape of the blocks of a parameter file.

    Initial kernels before a residual sum are divided by the square root of the number of sums (section 2.3).
    """
    shape = BlockShape(
        hidden_size=model["hidden_size"],
        num_heads=model["num_heads"],
        head_size=model["hidden_size"] // model["num_heads"],
        filter_size=model["filter_size"],
        activation=ACTIVATIONS[model["nonlinearity"]],
        norm_first=True,
        epsilon=model["layer_norm_epsilon"],
        dropout_rate=model["dropout_rate"],
        attention_dropout_rate=model["attention_dropout_rate"],
        stddev=model["initializer_range"],
        output_stddev=model["initializer_range"] / math.sqrt(2 * model["num_hidden_layers"]),
    )
    return shape if training else shape.without_dropout()


def network(ids: Any, model: dict[str, Any], *, training: bool) -> Any:
    """Return the logits [batch * length, vocabulary] of the tokens that follow ids [batch, length]."""
    shape = block_shape(model, training=training)
    length = ids.shape[1]
    with v1.variable_scope("embeddings"):
        stddev = model["initializer_range"]
        tokens = embedding_table("tokens", model["vocab_size"], shape.hidden_size, stddev)
        positions = embedding_table("positions", model["max_position_embeddings"], shape.hidden_size, stddev)
        x = tf.nn.embedding_lookup(tokens, ids) + positions[None, :length, :]
        x = dropout("dropout", x, model["embedding_dropout_rate"] if training else 0.0)
    bias = causal_bias(length)
    with v1.variable_scope("decoder"):
        for index in range(model["num_hidden_layers"]):
            x = block(f"layer_{index}", shape, x, bias)
        x = layer_norm("layer_norm", x, shape.epsilon)
    return tf.matmul(tf.reshape(x, [-1, shape.hidden_size]), tokens, transpose_b=True)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Build the graph of one step of training, evaluation or prediction."""
    ids = features["input_ids"]
    logits = network(ids, params["model"], training=mode == ModeKeys.TRAIN)
    guesses = tf.argmax(logits, axis=1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"next_tokens": tf.reshape(guesses, ids.shape)})
    targets = tf.reshape(labels, [-1])
    weights = tf.reshape(tf.cast(features["attention_mask"], tf.float32), [-1])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    loss = tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)
    if mode == ModeKeys.EVAL:
        metrics = {"accuracy": v1.metrics.accuracy(targets, guesses, weights)}
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, params["optimizer"]))
