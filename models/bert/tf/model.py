"""BERT (Devlin et al. 2019): masked words and next sentences, or answers to questions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from estimator import EstimatorSpec, ModeKeys
from models.common.tf.layers import ACTIVATIONS, dense, dropout, embedding_table, layer_norm, normal
from models.common.tf.optimizers import minimize
from models.common.tf.transformer import BlockShape, block, padding_bias

v1 = tf.compat.v1

SEGMENTS = 2
ANSWER = "answer"
"""Scope of the question answering head."""


def block_shape(model: dict[str, Any], *, training: bool) -> BlockShape:
    """Return the shape of the blocks of a parameter file."""
    shape = BlockShape(
        hidden_size=model["hidden_size"],
        num_heads=model["num_heads"],
        head_size=model["hidden_size"] // model["num_heads"],
        filter_size=model["filter_size"],
        activation=ACTIVATIONS[model["encoder_nonlinearity"]],
        norm_first=False,
        epsilon=model["layer_norm_epsilon"],
        dropout_rate=model["dropout_rate"],
        attention_dropout_rate=model["attention_dropout_rate"],
        stddev=model["initializer_range"],
    )
    return shape if training else shape.without_dropout()


def embeddings(features: dict[str, Any], model: dict[str, Any], shape: BlockShape) -> tuple[Any, Any]:
    """Return the sum of the embeddings of tokens, segments and positions, and the token table."""
    with v1.variable_scope("embeddings"):
        size, stddev = shape.hidden_size, model["initializer_range"]
        tokens = embedding_table("tokens", model["vocab_size"], size, stddev)
        segments = embedding_table("segments", SEGMENTS, size, stddev)
        positions = embedding_table("positions", model["max_position_embeddings"], size, stddev)
        length = features["input_ids"].shape[1]
        x = tf.nn.embedding_lookup(tokens, features["input_ids"])
        x += tf.nn.embedding_lookup(segments, features["segment_ids"])
        x += positions[None, :length, :]
        x = layer_norm("layer_norm", x, shape.epsilon)
        return dropout("dropout", x, shape.dropout_rate), tokens


def encoder(features: dict[str, Any], model: dict[str, Any], *, training: bool) -> tuple[Any, Any]:
    """Return the encoded sentences [batch, length, hidden], and the token table."""
    shape = block_shape(model, training=training)
    x, tokens = embeddings(features, model, shape)
    bias = padding_bias(features["input_mask"])
    with v1.variable_scope("encoder"):
        for index in range(model["num_hidden_layers"]):
            x = block(f"layer_{index}", shape, x, bias)
    return x, tokens


def masked_token_logits(x: Any, features: dict[str, Any], tokens: Any, model: dict[str, Any]) -> Any:
    """Return the logits [batch * predictions, vocabulary] of the masked tokens."""
    with v1.variable_scope("masked_lm"):
        masked = tf.gather(x, features["masked_lm_positions"], batch_dims=1)
        hidden = dense(
            "transform",
            tf.reshape(masked, [-1, model["hidden_size"]]),
            model["hidden_size"],
            activation=ACTIVATIONS[model["encoder_nonlinearity"]],
            kernel_initializer=normal("transform/kernel", model["initializer_range"]),
        )
        hidden = layer_norm("layer_norm", hidden, model["layer_norm_epsilon"])
        bias = v1.get_variable("bias", [model["vocab_size"]], initializer=v1.zeros_initializer())
        return tf.nn.bias_add(tf.matmul(hidden, tokens, transpose_b=True), bias)


def masked_token_loss(logits: Any, features: dict[str, Any], model: dict[str, Any]) -> Any:
    """Return the loss of the masked tokens, a scalar."""
    ids, weights = (tf.reshape(features[name], [-1]) for name in ("masked_lm_ids", "masked_lm_weights"))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits)
    if model["mlm_loss_scaling"] == "batch_size":
        count: Any = float(features["masked_lm_ids"].shape[0])
    else:
        count = tf.maximum(tf.reduce_sum(weights), 1.0)
    return model["mlm_loss_weight"] * tf.reduce_sum(losses * weights) / count


def next_sentence_logits(x: Any, model: dict[str, Any]) -> Any:
    """Return the logits [batch, 2] of the first position: the second sentence follows, or is random."""
    with v1.variable_scope("next_sentence"):
        size, stddev = model["hidden_size"], model["initializer_range"]
        pooled = dense(
            "pooler", x[:, 0, :], size, activation=tf.tanh, kernel_initializer=normal("pooler", stddev)
        )
        return dense("logits", pooled, 2, kernel_initializer=normal("logits", stddev))


def answer_logits(x: Any, model: dict[str, Any]) -> tuple[Any, Any]:
    """Return the logits [batch, length] of the first and of the last token of an answer."""
    with v1.variable_scope(ANSWER):
        logits = dense("logits", x, 2, kernel_initializer=normal("logits", model["initializer_range"]))
        start, end = tf.unstack(logits, axis=2)
        return start, end


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Build the graph of one step of training, evaluation or prediction."""
    x, tokens = encoder(features, params["model"], training=mode == ModeKeys.TRAIN)
    if params["model"]["head"] == "question_answering":
        return question_answering(x, labels, mode, params)
    return pretraining(x, tokens, features, labels, mode, params)


def question_answering(x: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Build question answering; labels [batch, 2] are the positions of the answer's first and last token."""
    logits = answer_logits(x, params["model"])
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=dict(zip(("start_logits", "end_logits"), logits, strict=True)))
    positions = tf.unstack(labels, axis=1)
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=position, logits=scores)
        for position, scores in zip(positions, logits, strict=True)
    ]
    loss = tf.reduce_mean(tf.add_n(losses)) / 2.0
    if mode == ModeKeys.EVAL:
        guesses = tf.stack([tf.argmax(scores, axis=1, output_type=tf.int32) for scores in logits], axis=1)
        exact = tf.reduce_all(tf.equal(guesses, labels), axis=1)
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"exact_match": v1.metrics.mean(exact)})
    return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, params["optimizer"]))


def pretraining(
    x: Any, tokens: Any, features: Any, labels: Any, mode: str, params: dict[str, Any]
) -> EstimatorSpec:
    """Build pre-training: prediction of masked words, and of the next sentence (label 0: it follows)."""
    model = params["model"]
    mlm_logits = masked_token_logits(x, features, tokens, model)
    mlm_ids = tf.argmax(mlm_logits, axis=1, output_type=tf.int32)
    nsp_logits = None if model["disable_nsp"] else next_sentence_logits(x, model)
    if mode == ModeKeys.PREDICT:
        predictions = {"masked_lm_ids": tf.reshape(mlm_ids, features["masked_lm_ids"].shape)}
        if nsp_logits is not None:
            predictions["next_sentence_probabilities"] = tf.nn.softmax(nsp_logits)
        return EstimatorSpec(mode, predictions=predictions)
    loss = masked_token_loss(mlm_logits, features, model)
    if nsp_logits is not None:
        loss += tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=nsp_logits)
        )
    if mode == ModeKeys.EVAL:
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics(features, labels, mlm_ids, nsp_logits))
    return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, params["optimizer"]))


def metrics(features: dict[str, Any], labels: Any, mlm_ids: Any, nsp_logits: Any) -> dict[str, Any]:
    """Return the accuracy of masked tokens and of next-sentence labels."""
    ids, weights = (tf.reshape(features[name], [-1]) for name in ("masked_lm_ids", "masked_lm_weights"))
    found = {"masked_lm_accuracy": v1.metrics.accuracy(ids, mlm_ids, weights)}
    if nsp_logits is not None:
        guesses = tf.argmax(nsp_logits, axis=1, output_type=tf.int32)
        found["next_sentence_accuracy"] = v1.metrics.accuracy(labels, guesses)
    return found
