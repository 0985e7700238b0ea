"""The Transformer for translation (Vaswani et al. 2017); sub-layers normalize their inputs."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from estimator import EstimatorSpec, ModeKeys
from models.common.tf.layers import (
    ACTIVATIONS,
    dense,
    dropout,
    embedding_table,
    layer_norm,
    sinusoids,
)
from models.common.tf.optimizers import minimize
from models.common.tf.transformer import BlockShape, block, causal_bias, padding_bias

v1 = tf.compat.v1


def block_shape(model: dict[str, Any], *, training: bool) -> BlockShape:
    """Return the shape of the blocks of a parameter file."""
    shape = BlockShape(
        hidden_size=model["d_model"],
        num_heads=model["num_heads"],
        head_size=model["d_kv"],
        filter_size=model["d_ff"],
        activation=ACTIVATIONS[model["nonlinearity"]],
        norm_first=True,
        epsilon=model["layer_norm_epsilon"],
        dropout_rate=model["dropout_rate"],
        attention_dropout_rate=model["attention_dropout_rate"],
    )
    return shape if training else shape.without_dropout()


def embed(name: str, ids: Any, vocab_size: int, model: dict[str, Any], shape: BlockShape) -> tuple[Any, Any]:
    """Embed tokens and their positions [batch, length, d_model]; return them and the token table."""
    with v1.variable_scope(name):
        size, length = shape.hidden_size, ids.shape[1]
        tokens = embedding_table("tokens", vocab_size, size, stddev=1.0 / math.sqrt(size))
        x = tf.nn.embedding_lookup(tokens, ids) * math.sqrt(size)
        if model["position_embedding_type"] == "fixed":
            positions = sinusoids(length, size)
        else:
            positions = embedding_table("positions", length, size, stddev=0.02)
        return dropout("dropout", x + positions[None, :, :], shape.dropout_rate), tokens


def network(features: dict[str, Any], model: dict[str, Any], *, training: bool) -> Any:
    """Return the logits [batch * target length, target vocabulary]."""
    shape = block_shape(model, training=training)
    source_bias = padding_bias(features["encoder_mask"])
    with v1.variable_scope("encoder"):
        x, _ = embed("embeddings", features["encoder_input_ids"], model["src_vocab_size"], model, shape)
        for index in range(model["encoder_num_hidden_layers"]):
            x = block(f"layer_{index}", shape, x, source_bias)
        memory = layer_norm("layer_norm", x, shape.epsilon)
    with v1.variable_scope("decoder"):
        ids = features["decoder_input_ids"]
        x, tokens = embed("embeddings", ids, model["tgt_vocab_size"], model, shape)
        bias = causal_bias(ids.shape[1])
        for index in range(model["decoder_num_hidden_layers"]):
            x = block(f"layer_{index}", shape, x, bias, memory, source_bias)
        x = layer_norm("layer_norm", x, shape.epsilon)
    rows = tf.reshape(x, [-1, shape.hidden_size])
    if model["share_embedding_weights"]:
        return tf.matmul(rows, tokens, transpose_b=True)
    return dense("logits", rows, model["tgt_vocab_size"], use_bias=False)


def token_losses(logits: Any, targets: Any, smoothing: float) -> Any:
    """Return the cross entropy of each row; smoothing spreads part of the target's weight over all tokens."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    count = logits.shape[-1]
    wanted = tf.one_hot(
        targets, count, on_value=1.0 - smoothing + smoothing / count, off_value=smoothing / count
    )
    return tf.nn.softmax_cross_entropy_with_logits(labels=wanted, logits=logits)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Build the graph of one step of training, evaluation or prediction."""
    model = params["model"]
    logits = network(features, model, training=mode == ModeKeys.TRAIN)
    guesses = tf.argmax(logits, axis=1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        shape = features["decoder_input_ids"].shape
        return EstimatorSpec(mode, predictions={"tokens": tf.reshape(guesses, shape)})
    targets = tf.reshape(labels, [-1])
    weights = tf.reshape(tf.cast(features["decoder_mask"], tf.float32), [-1])
    losses = token_losses(logits, targets, model["label_smoothing"])
    loss = tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)
    if mode == ModeKeys.EVAL:
        metrics = {"accuracy": v1.metrics.accuracy(targets, guesses, weights)}
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, params["optimizer"]))
