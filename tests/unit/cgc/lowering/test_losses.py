"""Softmax and cross entropies against numpy in float64, at ordinary and at extreme logits."""

from __future__ import annotations

import numpy as np
import pytest

from cgc.cirh import ops


def log_softmax(x, axis=-1):
    x = x.astype(np.float64)
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@pytest.mark.parametrize("scale", [1, 1000])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_and_its_logarithm(run_op, rng, axis, scale):
    x = (scale * rng.standard_normal((6, 7))).astype(np.float32)
    expected = log_softmax(x, axis)
    np.testing.assert_allclose(run_op(lambda v: ops.SoftmaxOp(v, axis), x), np.exp(expected), atol=1e-6)
    got = run_op(lambda v: ops.LogSoftmaxOp(v, axis), x)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_rows_without_elements(run_op, shape):
    x = np.zeros(shape, np.float32)
    for op in (ops.SoftmaxOp, ops.LogSoftmaxOp):
        assert run_op(lambda v, op=op: op(v, 1), x).shape == shape
    assert run_op(ops.SoftmaxCrossEntropyWithLogitsOp, x, x)[0].shape == shape[:1]


@pytest.mark.parametrize("scale", [1, 1000])
def test_sparse_cross_entropy(run_op, rng, scale):
    logits = (scale * rng.standard_normal((8, 10))).astype(np.float32)
    labels = rng.integers(0, 10, 8)
    loss, backprop = run_op(ops.SparseSoftmaxCrossEntropyWithLogitsOp, logits, labels)
    expected = log_softmax(logits)
    np.testing.assert_allclose(loss, -expected[np.arange(8), labels], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(backprop, np.exp(expected) - np.eye(10)[labels], atol=1e-6)


def test_sparse_cross_entropy_of_sequences(run_op, rng):
    logits = rng.standard_normal((2, 3, 5)).astype(np.float32)
    labels = rng.integers(0, 5, (2, 3)).astype(np.int32)
    loss, _ = run_op(ops.SparseSoftmaxCrossEntropyWithLogitsOp, logits, labels)
    expected = -np.take_along_axis(log_softmax(logits), labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_a_label_that_is_no_class_spoils_its_row_only(run_op):
    logits = np.zeros((3, 4), np.float32)
    loss, backprop = run_op(ops.SparseSoftmaxCrossEntropyWithLogitsOp, logits, np.int32([1, 4, -2]))
    assert np.isfinite(loss).tolist() == [True, False, False]
    assert np.isfinite(backprop).all(-1).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_row_labeled_as_padding_does_not_count(run_op, rng, dtype):
    logits = rng.standard_normal((3, 4)).astype(dtype)
    loss, backprop = run_op(ops.SparseSoftmaxCrossEntropyWithLogitsOp, logits, np.int64([1, -1, 3]))
    assert loss[1] == 0
    assert not backprop[1].any()
    counted = run_op(ops.SparseSoftmaxCrossEntropyWithLogitsOp, logits[[0, 2]], np.int64([1, 3]))
    np.testing.assert_array_equal(loss[[0, 2]], counted[0])
    np.testing.assert_array_equal(backprop[[0, 2]], counted[1])


def test_dense_cross_entropy(run_op, rng):
    logits = rng.standard_normal((5, 6)).astype(np.float32)
    labels = rng.dirichlet(np.ones(6), 5).astype(np.float32)
    loss, backprop = run_op(ops.SoftmaxCrossEntropyWithLogitsOp, logits, labels)
    expected = log_softmax(logits)
    np.testing.assert_allclose(loss, -(labels * expected).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(backprop, np.exp(expected) - labels, atol=1e-6)


def test_16_bit_logits_are_computed_in_float32(run_op):
    """Both exp and the sum of 1000 equal classes would lose digits in float16."""
    logits = np.zeros((1, 1000), np.float16)
    loss, _ = run_op(ops.SparseSoftmaxCrossEntropyWithLogitsOp, logits, np.int32([3]))
    assert loss[0] == np.float16(np.log(1000))
