"""Attributes for the arithmetic of PyTorch, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cgc.cirh import ops

torch = pytest.importorskip("torch")

LR, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.99, 1e-3, 0.1


@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_adam_for_ten_steps(run_op: Any, decay: float) -> None:
    """The epsilon is as large as roots of v, so that its position in the formula matters."""
    param, *grads = (np.random.default_rng(3).standard_normal((11, 7, 5)) * 0.01).astype(np.float32)
    tensor = torch.nn.Parameter(torch.tensor(param))
    optimizer = torch.optim.AdamW([tensor], LR, (BETA1, BETA2), EPSILON, weight_decay=decay)
    states = {True: (param, 0 * param, 0 * param), False: (param, 0 * param, 0 * param)}
    for step, grad in enumerate(grads, 1):
        tensor.grad = torch.tensor(grad)
        optimizer.step()
        numbers = np.array([BETA1**step, BETA2**step, LR, BETA1, BETA2, EPSILON, decay], np.float32)
        for corrected, state in states.items():
            states[corrected] = run_op(
                lambda *v, corrected=corrected: ops.AdamWOp(*v, corrected_epsilon=corrected),
                *state,
                *numbers[:6],
                grad,
                numbers[6],
            )
    expected = tensor.detach().numpy()
    np.testing.assert_allclose(states[True][0], expected, rtol=1e-5, atol=1e-7)
    assert np.abs(states[False][0] - expected).max() > 1e-3


def test_gradient_of_elu_from_features_and_from_outputs(run_op: Any) -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.standard_normal(50), [0.0, -0.0, -100.0, 100.0]]).astype(np.float32)
    grad = rng.standard_normal(x.size).astype(np.float32)
    features = torch.tensor(x, requires_grad=True)
    outputs = torch.nn.functional.elu(features)
    outputs.backward(torch.tensor(grad))
    expected = features.grad.numpy()
    of_features = run_op(lambda g, v: ops.EluGradOp(g, v, from_features=True), grad, x)
    of_outputs = run_op(ops.EluGradOp, grad, outputs.detach().numpy())
    np.testing.assert_allclose(of_features, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(of_outputs, expected, rtol=1e-5, atol=1e-6)
