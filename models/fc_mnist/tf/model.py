"""FC-MNIST: 784 inputs, hidden layers of ReLU with dropout, 10 classes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from estimator import EstimatorSpec, ModeKeys
from models.common.tf.layers import dense as dense_layer
from models.common.tf.optimizers import minimize

v1 = tf.compat.v1

NUM_CLASSES = 10
DROPOUT_SEED = 7


def dense(name: str, inputs: Any, size: int) -> Any:
    """Add a fully connected layer without activation."""
    # Its own seed: the initial weights do not depend on the rest of the graph.
    return dense_layer(name, inputs, size, kernel_initializer=v1.glorot_uniform_initializer(seed=size))


def network(pixels: Any, params: dict[str, Any], training: bool) -> Any:
    """Return the logits [batch, 10] of pixels [batch, 784] in 0 to 1."""
    hidden = pixels
    for index, size in enumerate(params["hidden_sizes"]):
        hidden = tf.nn.relu(dense(f"fc_{index}", hidden, size))
        if training and params["dropout"]:
            hidden = tf.nn.dropout(hidden, rate=params["dropout"], seed=DROPOUT_SEED + index)
    return dense("logits", hidden, NUM_CLASSES)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Build the graph of one step of training, evaluation or prediction."""
    logits = network(features, params["model"], training=mode == ModeKeys.TRAIN)
    classes = tf.argmax(logits, axis=1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"classes": classes, "probabilities": tf.nn.softmax(logits)})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == ModeKeys.EVAL:
        metrics = {"accuracy": v1.metrics.accuracy(labels=labels, predictions=classes)}
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, params["optimizer"]))
