"""Training steps of the example models: fused ops, and that a whole step computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.programs.tf import fused_layers as p


def check(module: ModuleOp, expected: dict[str, int], largest_share: float) -> None:
    plain, fused = p.before_and_after(module)
    counts: Counter[str] = p.op_counts(fused)
    assert {op: counts[op] for op in expected} == expected
    assert counts.total() < largest_share * p.op_counts(plain).total()
    p.assert_same_numbers(plain, fused, limit=2e-5)


def test_gpt2(step_of: Callable[[str], ModuleOp]) -> None:
    expected = {
        "LayerNorm": 5,
        "LayerNormGrad": 5,
        "Attention": 2,
        "AttentionGrad": 2,
        "Gelu": 2,
        "GeluGrad": 2,
    }
    check(step_of("gpt2"), {**expected, "L2Norm": 1, "AdamW": 14, "Softmax": 0, "Tanh": 0}, 0.5)


@pytest.mark.soak
def test_bert(step_of: Callable[[str], ModuleOp]) -> None:
    expected = {
        "LayerNorm": 6,
        "LayerNormGrad": 6,
        "Attention": 2,
        "AttentionGrad": 2,
        "Gelu": 3,
        "GeluGrad": 3,
    }
    check(step_of("bert"), {**expected, "L2Norm": 1, "AdamW": 17, "Softmax": 0, "Erf": 0}, 0.5)


@pytest.mark.soak
def test_transformer(step_of: Callable[[str], ModuleOp]) -> None:
    expected = {"LayerNorm": 12, "LayerNormGrad": 12, "Attention": 6, "AttentionGrad": 6, "Softmax": 0}
    check(step_of("transformer"), expected, 0.6)
