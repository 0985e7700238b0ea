"""U-Net (Ronneberger et al. 2015): a class for each pixel, with padding that keeps the sizes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from estimator import EstimatorSpec, ModeKeys
from models.common.tf.convolution import batch_norm, conv2d, conv2d_transpose, l2_loss_of_kernels
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
        """Return the logits [batch, height, width, classes] of images [batch, height, width, channels]."""
        settings = self._settings
        *levels, bottom = settings["encoder_filters"]
        skipped = []
        hidden = images
        for level, filters in enumerate(levels):
            with v1.variable_scope(f"encoder{level}"):
                hidden = self._block(hidden, filters)
                skipped.append(hidden)
                hidden = self._halve(hidden)
        with v1.variable_scope("bottom"):
            hidden = self._block(hidden, bottom)
        for level, filters in enumerate(settings["decoder_filters"]):
            with v1.variable_scope(f"decoder{level}"):
                hidden = self._double(hidden, filters)
                skip = skipped.pop()
                if settings["skip_connect"]:
                    hidden = tf.concat([skip, hidden], axis=3, name="concat")
                hidden = self._block(hidden, filters)
        return conv2d("logits", hidden, settings["num_classes"], 1)

    def _block(self, hidden: Any, filters: int) -> Any:
        for index in range(self._settings["convs_per_block"]):
            hidden = self._conv(f"conv{index}", hidden, filters, 3)
        return hidden

    def _conv(self, name: str, inputs: Any, filters: int, size: int, strides: int = 1) -> Any:
        """Add convolution, normalization and ReLU."""
        settings = self._settings
        with_norm = settings["norm_type"] == "batch_norm"
        hidden = conv2d(name, inputs, filters, size, strides, use_bias=not with_norm)
        if with_norm:
            momentum, epsilon = settings["norm_momentum"], settings["norm_epsilon"]
            hidden = batch_norm(f"{name}_norm", hidden, self._training, momentum, epsilon)
        return tf.nn.relu(hidden)

    def _halve(self, hidden: Any) -> Any:
        method = self._settings["downscale_method"]
        if method == "max_pool":
            return tf.nn.max_pool2d(hidden, 2, 2, "VALID", name="max_pool")
        if method == "avg_pool":
            return tf.nn.avg_pool2d(hidden, 2, 2, "VALID", name="avg_pool")
        return self._conv("down", hidden, hidden.shape[-1], 3, strides=2)

    def _double(self, hidden: Any, filters: int) -> Any:
        method = self._settings["upscale_method"]
        if method == "transposed_conv":
            return conv2d_transpose("up", hidden, filters, kernel_size=2, strides=2)
        _, height, width, _ = hidden.shape
        return self._conv("up", tf.image.resize(hidden, [2 * height, 2 * width], method=method), filters, 3)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Build the graph of one step of training, evaluation or prediction.

    Args:
        features: Images [batch, height, width, channels] float32.
        labels: Classes [batch, height, width] int32.
        mode: One of ModeKeys.
        params: The parameters, as in the parameter file.
    """
    settings = params["model"]
    logits = Network(settings, training=mode == ModeKeys.TRAIN).logits(features)
    classes = tf.argmax(logits, axis=3, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"classes": classes, "probabilities": tf.nn.softmax(logits)})
    with v1.variable_scope("loss"):
        errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(errors)
        if settings["weight_decay"]:
            loss += l2_loss_of_kernels(settings["weight_decay"])
    if mode == ModeKeys.EVAL:
        metrics = overlap_metrics(labels, classes, settings["num_classes"])
        metrics["accuracy"] = v1.metrics.accuracy(labels=labels, predictions=classes)
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = minimize(loss, params["optimizer"])
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def overlap_metrics(labels: Any, classes: Any, num_classes: int) -> dict[str, Any]:
    """Return the mean IoU over the classes that occur, and the Dice coefficient without the background, 0.

    `tf.compat.v1.metrics.mean_iou` uses float64, which the CS system does not support; this uses float32.
    """
    with v1.variable_scope("confusion"):
        total = v1.get_variable(
            "total",
            [num_classes, num_classes],
            initializer=v1.zeros_initializer(),
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES],
        )
        true, found = (tf.one_hot(tf.reshape(x, [-1]), num_classes) for x in (labels, classes))
        update = v1.assign_add(total, tf.matmul(true, found, transpose_a=True))
        right = tf.linalg.diag_part(total)
        both = tf.reduce_sum(total, axis=0) + tf.reduce_sum(total, axis=1)
        iou = _mean_of_present(right, both - right)
        dice = _mean_of_present(2.0 * right[1:], both[1:])
    return {"mean_iou": (iou, update), "dice": (dice, update)}


def _mean_of_present(share: Any, whole: Any) -> Any:
    """Return the mean of share / whole over the entries where whole is not 0; 0 without any."""
    present = tf.cast(whole > 0, tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(tf.math.divide_no_nan(share, whole)), tf.reduce_sum(present))
