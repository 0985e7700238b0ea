"""Fusion keeps the numbers of a program, whatever its shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")
p: Any = pytest.importorskip("tests.programs.tf.fused_layers")

FEW = settings(max_examples=4, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=40)
SIZES = st.integers(2, 5)
SHAPES = st.lists(SIZES, min_size=2, max_size=4).map(tuple) | st.tuples(st.just(1), SIZES, SIZES)
HEADS = st.tuples(SIZES, SIZES, SIZES, SIZES)
GROUPS: list[tuple[dict[str, Any], st.SearchStrategy[Any], tuple[str, str]]] = [
    (p.LAYER_NORMS, SHAPES, ("LayerNorm", "LayerNormGrad")),
    (p.GELUS, SHAPES, ("Gelu", "GeluGrad")),
    (p.ATTENTIONS, HEADS, ("Attention", "AttentionGrad")),
]


def drawn_check(data: st.DataObject) -> None:
    forms, shapes, expected = data.draw(st.sampled_from(GROUPS))
    name, shape = data.draw(st.sampled_from(sorted(forms))), data.draw(shapes)
    check(forms, name, shape, expected, seed=data.draw(st.integers(0, 99)))


def check(
    forms: dict[str, Any], name: str, shape: tuple[int, ...], expected: tuple[str, str], seed: int
) -> None:
    loss: Callable[..., Any] = p.squares_of({name: forms[name]})
    plain, fused = p.before_and_after(p.training_step(loss, [(shape, tf.float32)]))
    counts = p.op_counts(fused)
    assert [counts[op] for op in expected] == [1, 1]
    p.assert_same_numbers(plain, fused, seed)


def test_a_row_of_two_nearly_equal_elements() -> None:
    check(p.LAYER_NORMS, "batch_normalization", (1, 3, 2), ("LayerNorm", "LayerNormGrad"), seed=38)


@FEW
@given(st.data())
def test_a_few_shapes(data: st.DataObject) -> None:
    drawn_check(data)


@pytest.mark.soak
@MANY
@given(st.data())
def test_many_shapes(data: st.DataObject) -> None:
    drawn_check(data)
