"""Normalizations, attention and their gradients against TensorFlow in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cgc.cirh import ops

tf = pytest.importorskip("tensorflow")

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def group_norm(x, scale, offset, groups, epsilon):
    """Compute group norm in float64; layer norm of `[..., C]` is that of one group of one position."""
    shape = tf.shape(x)
    grouped = tf.reshape(x, (shape[0], -1, groups, shape[-1] // groups))
    mean, variance = tf.nn.moments(grouped, [1, 3], keepdims=True)
    normalized = tf.reshape((grouped - mean) * tf.math.rsqrt(variance + epsilon), shape)
    return normalized * scale + offset, tf.squeeze(mean, [1, 3]), tf.squeeze(variance, [1, 3])


def reference(function, grad, *arrays):
    """(results, gradients of the first one by all arrays), float64."""
    values = [tf.constant(array, tf.float64) for array in arrays]
    with tf.GradientTape() as tape:
        for value in values:
            tape.watch(value)
        results = function(*values)
    gradients = tape.gradient(results[0], values, tf.constant(grad, tf.float64))
    return [r.numpy() for r in results], [g.numpy() for g in gradients]


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 5), (7,)])
def test_layer_norm_and_its_gradient(run_op, rng, shape):
    x, grad = 2 * normal(rng, *shape) + 3, normal(rng, *shape)
    scale, offset = normal(rng, shape[-1]), normal(rng, shape[-1])

    def rows(x, scale, offset):
        y, mean, variance = group_norm(tf.reshape(x, (-1, shape[-1])), scale, offset, 1, 1e-3)
        return tf.reshape(y, shape), mean, variance

    (y, mean, variance), gradients = reference(rows, grad, x, scale, offset)
    got = run_op(lambda *v: ops.LayerNormOp(*v, 1e-3), x, scale, offset)
    moments = (*shape[:-1], 1)
    expected = (y, mean.reshape(moments), (variance + 1e-3).reshape(moments) ** -0.5)
    for value, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, wanted, **CLOSE)
    for value, wanted in zip(run_op(ops.LayerNormGradOp, grad, x, scale, *got[1:]), gradients, strict=True):
        np.testing.assert_allclose(value, wanted, **CLOSE)


@pytest.mark.parametrize(("shape", "groups"), [((3, 8), 4), ((2, 4, 5, 6), 3), ((2, 4, 5, 6), 1)])
def test_group_norm_and_its_gradient(run_op, rng, shape, groups):
    x, grad = 2 * normal(rng, *shape) - 1, normal(rng, *shape)
    scale, offset = normal(rng, shape[-1]), normal(rng, shape[-1])
    (y, mean, variance), gradients = reference(
        lambda *v: group_norm(*v, groups, 1e-3), grad, x, scale, offset
    )
    got = run_op(lambda *v: ops.GroupNormOp(*v, groups, 1e-3), x, scale, offset)
    for value, wanted in zip(got, (y, mean, (variance + 1e-3) ** -0.5), strict=True):
        np.testing.assert_allclose(value, wanted, **CLOSE)
    back = run_op(lambda *v: ops.GroupNormGradOp(*v, groups), grad, x, scale, *got[1:])
    for value, wanted in zip(back, gradients, strict=True):
        np.testing.assert_allclose(value, wanted, **CLOSE)


def test_moments_of_16_bit_activations_are_float32(run_op, rng):
    x = (100 + normal(rng, 4, 512)).astype(np.float16)
    scale, offset = np.ones(512, np.float32), np.zeros(512, np.float32)
    y, mean, rstd = run_op(lambda *v: ops.LayerNormOp(*v, 1e-5), x, scale, offset)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean[:, 0], wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(rstd[:, 0], (wide.var(1) + 1e-5) ** -0.5, rtol=1e-4)
    assert y.dtype == np.float16


def plain_attention(query, key, value, bias, keep, scale):
    scores = tf.matmul(query, key, transpose_b=True) * scale + bias
    probabilities = tf.nn.softmax(scores)
    return tf.matmul(probabilities * keep, value), probabilities


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_keep", [False, True])
def test_attention_and_its_gradient(run_op, rng, has_bias, has_keep):
    query, key, value = normal(rng, 2, 3, 5, 4), normal(rng, 2, 3, 6, 4), normal(rng, 2, 3, 6, 7)
    grad, scale = normal(rng, 2, 3, 5, 7), np.float32(0.3)
    bias = np.where(rng.random((2, 1, 1, 6)) < 0.3, -1e4, 0).astype(np.float32)
    keep = ((rng.random((2, 3, 5, 6)) < 0.8) / 0.8).astype(np.float32)
    used = [array for array, has in ((bias, has_bias), (keep, has_keep)) if has]

    def split(rest):
        rest = list(rest)
        return rest.pop(0) if has_bias else None, rest.pop(0) if has_keep else None

    (context, probabilities), gradients = reference(
        lambda q, k, v: plain_attention(
            q, k, v, bias.astype(float) if has_bias else 0.0, keep.astype(float) if has_keep else 1.0, 0.3
        ),
        grad,
        query,
        key,
        value,
    )
    got = run_op(
        lambda q, k, v, *rest: ops.AttentionOp(q, k, v, *split(rest), scale), query, key, value, *used
    )
    np.testing.assert_allclose(got[0], context, **CLOSE)
    np.testing.assert_allclose(got[1], probabilities, **CLOSE)
    back = run_op(
        lambda g, q, k, v, p, *rest: ops.AttentionGradOp(g, q, k, v, p, *rest, scale=scale),
        grad,
        query,
        key,
        value,
        got[1],
        *([keep] if has_keep else []),
    )
    for value_, wanted in zip(back, gradients, strict=True):
        np.testing.assert_allclose(value_, wanted, **CLOSE)


@pytest.mark.parametrize("axis", [0, 2])
def test_softmax_gradient(run_op, rng, axis):
    x, grad = normal(rng, 3, 4, 5), normal(rng, 3, 4, 5)
    (probabilities,), (expected,) = reference(lambda v: (tf.nn.softmax(v, axis),), grad, x)
    got = run_op(lambda *v: ops.SoftmaxGradOp(*v, axis), probabilities.astype(np.float32), grad)
    np.testing.assert_allclose(got, expected, **CLOSE)


def test_attention_in_bfloat16_rounds_only_the_results(run_op, rng):
    query, key, value = (normal(rng, 1, 8, 16).astype(ml_dtypes.bfloat16) for _ in range(3))
    context, _ = run_op(lambda *v: ops.AttentionOp(*v, scale=0.25), query, key, value)
    wide = [array.astype(np.float64) for array in (query, key, value)]
    expected, _ = plain_attention(*wide, 0.0, 1.0, 0.25)
    np.testing.assert_allclose(context.astype(np.float64), expected, atol=0.02)


@pytest.mark.parametrize("use_nesterov", [False, True])
def test_adam_w_is_adam_of_a_decayed_parameter(run_op, rng, use_nesterov):
    param, m, v, grad = (np.abs(normal(rng, 6, 3)) for _ in range(4))
    powers, lr, betas = np.float32([0.5, 0.9]), np.float32(0.1), np.float32([0.9, 0.99])
    epsilon, decay = np.float32(1e-8), np.float32(0.3)
    got = run_op(
        lambda *a: ops.AdamWOp(*a, use_nesterov=use_nesterov),
        param,
        m,
        v,
        *powers,
        lr,
        *betas,
        epsilon,
        grad,
        decay,
    )
    new_m, new_v = 0.9 * m + 0.1 * grad, 0.99 * v + 0.01 * grad**2
    direction = 0.1 * grad + 0.9 * new_m if use_nesterov else new_m
    step = 0.1 * np.sqrt(1 - 0.9) / (1 - 0.5) * direction / (np.sqrt(new_v) + 1e-8)
    for value, wanted in zip(got, (param - 0.1 * 0.3 * param - step, new_m, new_v), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "activation"),
    [
        ("BiasRelu", tf.nn.relu),
        ("BiasGelu", tf.nn.gelu),
        ("BiasGeluTanh", lambda x: tf.nn.gelu(x, approximate=True)),
        ("BiasTanh", tf.tanh),
        ("BiasSigmoid", tf.sigmoid),
        ("BiasElu", tf.nn.elu),
        ("BiasSoftplus", tf.nn.softplus),
        ("BiasHardSigmoid", lambda x: tf.nn.relu6(x + 3) / 6),
    ],
)
def test_composites(run_op, rng, function, activation):
    x, bias = 3 * normal(rng, 5, 4), normal(rng, 4)
    got = run_op(lambda *v: ops.CompositeOp(*v, function), x, bias)
    np.testing.assert_allclose(got, activation(tf.constant(x.astype(float) + bias)), **CLOSE)


def test_hard_sigmoid_gradient(run_op, rng):
    x, grad = 3 * normal(rng, 40), normal(rng, 40)
    _, (expected,) = reference(lambda v: (tf.nn.relu6(v + 3) / 6,), grad, x)
    np.testing.assert_allclose(run_op(ops.HardSigmoidGradOp, grad, x), expected, **CLOSE)
