"""Lowerings against TensorFlow itself, where the formula leaves a choice."""

from __future__ import annotations

import numpy as np
import pytest

from cgc.cirh import ops

tf = pytest.importorskip("tensorflow")

CLOSE = {"rtol": 2e-6, "atol": 1e-6}


def f32(*values):
    return tuple(np.float32(value) for value in values)


@pytest.fixture
def tensors(rng):
    """`tensors(n)`: n random float32 tensors of one shape."""
    return lambda count: rng.standard_normal((count, 7, 5)).astype(np.float32)


@pytest.mark.parametrize("use_nesterov", [False, True])
def test_adam_for_ten_steps(run_op, tensors, use_nesterov):
    param, *grads = tensors(11)
    variables = [tf.Variable(param), tf.Variable(0 * param), tf.Variable(0 * param)]
    state = (param, 0 * param, 0 * param)
    lr, beta1, beta2, epsilon = f32(0.01, 0.9, 0.999, 1e-8)
    for step, grad in enumerate(grads, 1):
        powers = f32(beta1**step, beta2**step)
        tf.raw_ops.ResourceApplyAdam(
            **{name: v.handle for name, v in zip(("var", "m", "v"), variables, strict=True)},
            beta1_power=powers[0],
            beta2_power=powers[1],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            grad=grad,
            use_nesterov=use_nesterov,
        )
        state = run_op(
            lambda *v: ops.AdamOp(*v, use_nesterov=use_nesterov),
            *state,
            *powers,
            lr,
            beta1,
            beta2,
            epsilon,
            grad,
        )
    for variable, value in zip(variables, state, strict=True):
        np.testing.assert_allclose(value, variable.numpy(), **CLOSE)


@pytest.mark.parametrize("use_nesterov", [False, True])
def test_momentum(run_op, tensors, use_nesterov):
    param, *grads = tensors(6)
    var, accum = tf.Variable(param), tf.Variable(0 * param)
    state = (param, 0 * param)
    lr, momentum = f32(0.1, 0.9)
    for grad in grads:
        tf.raw_ops.ResourceApplyMomentum(
            var=var.handle, accum=accum.handle, lr=lr, grad=grad, momentum=momentum, use_nesterov=use_nesterov
        )
        state = run_op(lambda *v: ops.MomentumOp(*v, use_nesterov=use_nesterov), *state, lr, grad, momentum)
    np.testing.assert_allclose(state[0], var.numpy(), **CLOSE)
    np.testing.assert_allclose(state[1], accum.numpy(), **CLOSE)


def test_rms_prop(run_op, tensors):
    param, *grads = tensors(6)
    var, ms, mom = tf.Variable(param), tf.Variable(0 * param + 1), tf.Variable(0 * param)
    state = (param, 0 * param + 1, 0 * param)
    lr, rho, momentum, epsilon = f32(0.01, 0.9, 0.5, 1e-10)
    for grad in grads:
        tf.raw_ops.ResourceApplyRMSProp(
            var=var.handle,
            ms=ms.handle,
            mom=mom.handle,
            lr=lr,
            rho=rho,
            momentum=momentum,
            epsilon=epsilon,
            grad=grad,
        )
        state = run_op(ops.RMSPropOp, *state, lr, rho, momentum, epsilon, grad)
    for variable, value in zip((var, ms, mom), state, strict=True):
        np.testing.assert_allclose(value, variable.numpy(), **CLOSE)


def test_adagrad_and_gradient_descent(run_op, tensors):
    param, *grads = tensors(6)
    var, accum, plain = tf.Variable(param), tf.Variable(0 * param + 0.1), tf.Variable(param)
    state, plain_state = (param, 0 * param + np.float32(0.1)), param
    lr = np.float32(0.1)
    for grad in grads:
        tf.raw_ops.ResourceApplyAdagrad(var=var.handle, accum=accum.handle, lr=lr, grad=grad)
        tf.raw_ops.ResourceApplyGradientDescent(var=plain.handle, alpha=lr, delta=grad)
        state = run_op(ops.AdagradOp, *state, lr, grad)
        plain_state = run_op(ops.GradientDescentOp, plain_state, lr, grad)
    np.testing.assert_allclose(state[0], var.numpy(), **CLOSE)
    np.testing.assert_allclose(state[1], accum.numpy(), **CLOSE)
    np.testing.assert_allclose(plain_state, plain.numpy(), **CLOSE)


def test_cross_entropies(run_op, rng):
    logits = (3 * rng.standard_normal((16, 10))).astype(np.float32)
    labels = rng.integers(0, 10, 16)
    sparse = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
    for got, expected in zip(
        run_op(ops.SparseSoftmaxCrossEntropyWithLogitsOp, logits, labels), sparse, strict=True
    ):
        np.testing.assert_allclose(got, expected, **CLOSE)
    soft = rng.dirichlet(np.ones(10), 16).astype(np.float32)
    dense = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=logits, labels=soft)
    for got, expected in zip(run_op(ops.SoftmaxCrossEntropyWithLogitsOp, logits, soft), dense, strict=True):
        np.testing.assert_allclose(got, expected, **CLOSE)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        (ops.SoftmaxOp, tf.nn.softmax),
        (ops.LogSoftmaxOp, tf.nn.log_softmax),
        (ops.SoftplusOp, tf.nn.softplus),
        (ops.EluOp, tf.nn.elu),
        (ops.GeluOp, lambda x: tf.nn.gelu(x, approximate=False)),
        (lambda x: ops.GeluOp(x, approximate=True), lambda x: tf.nn.gelu(x, approximate=True)),
        (ops.LeakyReluOp, tf.nn.leaky_relu),
        (ops.RoundOp, tf.round),
        (ops.SignOp, tf.sign),
    ],
)
def test_functions(run_op, op, function):
    x = np.linspace(-8, 8, 65, dtype=np.float32)
    np.testing.assert_allclose(run_op(op, x), function(x), rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "gradient", "names"),
    [
        (ops.ReluGradOp, tf.raw_ops.ReluGrad, ("gradients", "features")),
        (ops.EluGradOp, tf.raw_ops.EluGrad, ("gradients", "outputs")),
        (ops.LeakyReluGradOp, tf.raw_ops.LeakyReluGrad, ("gradients", "features")),
        (ops.SoftplusGradOp, tf.raw_ops.SoftplusGrad, ("gradients", "features")),
        (ops.SigmoidGradOp, tf.raw_ops.SigmoidGrad, ("y", "dy")),
        (ops.TanhGradOp, tf.raw_ops.TanhGrad, ("y", "dy")),
    ],
)
def test_gradients_take_their_operands_in_tensorflows_sense(run_op, tensors, op, gradient, names):
    first, second = tensors(2)
    expected = gradient(**dict(zip(names, (first, second), strict=True)))
    np.testing.assert_allclose(run_op(op, first, second), expected, **CLOSE)


def test_gelu_gradient(run_op, tensors):
    features, grad = tensors(2)
    for approximate in (False, True):
        with tf.GradientTape() as tape:
            x = tf.constant(features)
            tape.watch(x)
            y = tf.nn.gelu(x, approximate=approximate)
        expected = tape.gradient(y, x, output_gradients=tf.constant(grad))
        got = run_op(lambda g, f, a=approximate: ops.GeluGradOp(g, f, approximate=a), grad, features)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_division_and_remainder_of_both_signs(run_op):
    left, right = np.float32([7, -7, 7, -7, 6.5, -0.5]), np.float32([2, 2, -2, -2, 0.25, 3])
    np.testing.assert_array_equal(run_op(ops.FloorDivOp, left, right), tf.math.floordiv(left, right))
    np.testing.assert_array_equal(run_op(ops.FloorModOp, left, right), tf.math.floormod(left, right))


def test_cast_with_truncation(run_op, rng):
    x = (rng.standard_normal(200) * 100).astype(np.float32)
    expected = tf.raw_ops.Cast(x=x, DstT=tf.bfloat16, Truncate=True).numpy()
    np.testing.assert_array_equal(run_op(lambda v: ops.CastOp(v, "bfloat16", truncate=True), x), expected)


def test_gather_segment_sum_and_one_hot(run_op, rng):
    x = rng.standard_normal((6, 3)).astype(np.float32)
    indices = rng.integers(0, 6, (4,))
    np.testing.assert_array_equal(run_op(ops.GatherOp, x, indices), tf.gather(x, indices))
    ids = np.int32([2, 0, -1, 2, 1, 1])
    np.testing.assert_allclose(
        run_op(lambda i, u: ops.ScatterNdOp(i, u, [3, 3]), ids, x),
        tf.math.unsorted_segment_sum(x, ids, 3),
        **CLOSE,
    )
    got = run_op(lambda i, a, b: ops.OneHotOp(i, a, b, depth=5), ids, *f32(1, 0))
    np.testing.assert_array_equal(got, tf.one_hot(ids, 5))
