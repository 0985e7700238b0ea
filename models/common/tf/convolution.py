"""Layers of convolutional networks on images NHWC, in the style of tf.compat.v1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.common.tf.layers import Initializer, seed_of

v1 = tf.compat.v1


def he_normal(name: str) -> Initializer:
    """Return a truncated normal initializer of variance 2 / inputs, for use with ReLU (He et al. 2015)."""
    initializer: Initializer = v1.variance_scaling_initializer(
        scale=2.0, mode="fan_in", distribution="truncated_normal", seed=seed_of(name)
    )
    return initializer


def conv2d(
    name: str, inputs: Any, filters: int, kernel_size: int, strides: int = 1, *, use_bias: bool = True
) -> Any:
    """Add a convolution whose padding keeps height and width, divided by the strides.

    Variables: `kernel` [kernel_size, kernel_size, channels, filters] and `bias` [filters].
    """
    with v1.variable_scope(name):
        kernel = v1.get_variable(
            "kernel",
            [kernel_size, kernel_size, inputs.shape[-1], filters],
            initializer=he_normal("kernel"),
        )
        result = tf.nn.conv2d(inputs, kernel, strides, "SAME")
        return _with_bias(result, filters) if use_bias else result


def conv2d_transpose(name: str, inputs: Any, filters: int, kernel_size: int, strides: int) -> Any:
    """Add a transposed convolution, which multiplies height and width by the strides.

    Variables: `kernel` [kernel_size, kernel_size, filters, channels] and `bias` [filters].
    """
    with v1.variable_scope(name):
        batch, height, width, channels = inputs.shape
        kernel = v1.get_variable(
            "kernel", [kernel_size, kernel_size, filters, channels], initializer=he_normal("kernel")
        )
        shape = [batch, height * strides, width * strides, filters]
        return _with_bias(tf.nn.conv2d_transpose(inputs, kernel, shape, strides, "SAME"), filters)


def batch_norm(name: str, inputs: Any, training: bool, momentum: float, epsilon: float) -> Any:
    """Add batch normalization with moving averages of the moments, which UPDATE_OPS update in training.

    Variables of [channels]: `gamma`, `beta`, and `moving_mean`, `moving_variance`, which no optimizer trains.
    """
    with v1.variable_scope(name):
        channels = [inputs.shape[-1]]
        zeros, ones = v1.zeros_initializer(), v1.ones_initializer()
        gamma = v1.get_variable("gamma", channels, initializer=ones)
        beta = v1.get_variable("beta", channels, initializer=zeros)
        moving_mean = v1.get_variable("moving_mean", channels, initializer=zeros, trainable=False)
        moving_variance = v1.get_variable("moving_variance", channels, initializer=ones, trainable=False)
        if not training:
            return v1.nn.fused_batch_norm(
                inputs, gamma, beta, moving_mean, moving_variance, epsilon, is_training=False
            )[0]
        result, mean, variance = v1.nn.fused_batch_norm(inputs, gamma, beta, epsilon=epsilon)
        for moving, value in ((moving_mean, mean), (moving_variance, variance)):
            update = v1.assign_sub(moving, (moving - value) * (1.0 - momentum))
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
        return result


def l2_loss_of_kernels(rate: float) -> Any:
    """Return `rate` times half the sum of squares of all kernels; biases and normalization do not decay."""
    kernels = [v for v in v1.trainable_variables() if v.name.endswith("kernel:0")]
    return rate * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])


def _with_bias(result: Any, size: int) -> Any:
    return tf.nn.bias_add(result, v1.get_variable("bias", [size], initializer=v1.zeros_initializer()))
