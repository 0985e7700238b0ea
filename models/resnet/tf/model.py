"""ResNet of basic blocks (He et al. 2016): ResNet-18 with two of them in each of four stages."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from estimator import EstimatorSpec, ModeKeys
from models.common.tf.convolution import batch_norm, conv2d, l2_loss_of_kernels
from models.common.tf.layers import dense
from models.common.tf.optimizers import minimize

v1 = tf.compat.v1


class Network:
    """Builds the network for one mode.

    Args:
        settings: The group `model` of the parameters.
        training: Batch norms use the moments of the batch.
    """

    def __init__(self, settings: dict[str, Any], training: bool) -> None:
        self._settings = settings
        self._training = training

    def logits(self, images: Any) -> Any:
        """Return the logits [batch, classes] of images [batch, height, width, channels]."""
        hidden = self._stem(images)
        stages = zip(self._settings["filters"], self._settings["blocks"], strict=True)
        for stage, (filters, blocks) in enumerate(stages):
            for block in range(blocks):
                with v1.variable_scope(f"stage{stage}_block{block}"):
                    hidden = self._block(hidden, filters, strides=2 if stage and not block else 1)
        return dense("logits", tf.reduce_mean(hidden, axis=[1, 2]), self._settings["num_classes"])

    def _stem(self, images: Any) -> Any:
        """Add a large convolution with strides and pooling for photographs, a small one for tiny images."""
        size, strides = self._settings["stem_kernel_size"], self._settings["stem_strides"]
        with v1.variable_scope("stem"):
            hidden = self._conv("conv", images, self._settings["filters"][0], size, strides)
            hidden = tf.nn.relu(self._norm("norm", hidden))
            if self._settings["stem_max_pool"]:
                hidden = tf.nn.max_pool2d(hidden, 3, 2, "SAME", name="max_pool")
        return hidden

    def _block(self, inputs: Any, filters: int, strides: int) -> Any:
        """Add two convolutions and a shortcut, which is a projection if the shape changes."""
        shortcut = inputs
        if strides != 1 or inputs.shape[-1] != filters:
            shortcut = self._conv("projection", inputs, filters, 1, strides)
            shortcut = self._norm("projection_norm", shortcut)
        hidden = tf.nn.relu(self._norm("norm1", self._conv("conv1", inputs, filters, 3, strides)))
        hidden = self._norm("norm2", self._conv("conv2", hidden, filters, 3))
        return tf.nn.relu(hidden + shortcut)

    def _conv(self, name: str, inputs: Any, filters: int, size: int, strides: int = 1) -> Any:
        return conv2d(name, inputs, filters, size, strides, use_bias=False)

    def _norm(self, name: str, inputs: Any) -> Any:
        return batch_norm(
            name, inputs, self._training, self._settings["norm_momentum"], self._settings["norm_epsilon"]
        )


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Build the graph of one step of training, evaluation or prediction.

    Args:
        features: Images [batch, height, width, channels] float32.
        labels: Classes [batch] int32.
        mode: One of ModeKeys.
        params: The parameters, as in the parameter file.
    """
    settings = params["model"]
    logits = Network(settings, training=mode == ModeKeys.TRAIN).logits(features)
    classes = tf.argmax(logits, axis=1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"classes": classes, "probabilities": tf.nn.softmax(logits)})
    with v1.variable_scope("loss"):
        errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(errors) + l2_loss_of_kernels(settings["weight_decay"])
    if mode == ModeKeys.EVAL:
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=_metrics(labels, logits, classes))
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = minimize(loss, params["optimizer"])
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def _metrics(labels: Any, logits: Any, classes: Any) -> dict[str, Any]:
    """Return the top-1 and the top-5 accuracy.

    The rank of the correct class is the number of classes with a larger logit, which needs no sorting.
    """
    one_hot = tf.one_hot(labels, logits.shape[1])
    right = tf.reduce_sum(logits * one_hot, axis=1, keepdims=True)
    larger = tf.reduce_sum(tf.cast(logits > right, tf.int32), axis=1)
    return {
        "accuracy": v1.metrics.accuracy(labels=labels, predictions=classes),
        "top_5_accuracy": v1.metrics.mean(tf.cast(larger < 5, tf.float32)),
    }
