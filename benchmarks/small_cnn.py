"""A small convolutional network for digits: two convolutions with batch norm and pooling, two dense."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from estimator import EstimatorSpec
from models.common.tf.convolution import batch_norm, conv2d
from models.common.tf.layers import dense
from models.common.tf.optimizers import minimize

v1 = tf.compat.v1

SIDE = 28
CLASSES = 10


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """The graph of a training step; `params`: `optimizer`, see `minimize`, and `filters` per convolution."""
    hidden = features
    for index, filters in enumerate(params["filters"]):
        with v1.variable_scope(f"conv{index}"):
            hidden = conv2d("conv", hidden, filters, 3, use_bias=False)
            hidden = tf.nn.relu(batch_norm("norm", hidden, True, momentum=0.9, epsilon=1e-5))
            hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    flat = tf.reshape(hidden, [hidden.shape[0], -1])
    logits = dense("logits", dense("dense", flat, 64, activation=tf.nn.relu), CLASSES)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, params["optimizer"]))
