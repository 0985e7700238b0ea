"""Whole networks as public programs write them, at published size: the published rates."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp

from estimator.calling import model_graph
from tests.programs.tf import public_layers as p

from .test_public_style import imported, kernels_and_rate

v1 = tf.compat.v1

GPT2_SMALL = {
    "vocabulary": 50257,
    "hidden": 768,
    "heads": 12,
    "filter": 3072,
    "layers": 12,
    "rate": 0.1,
    "attention_rate": 0.1,
    "activation": "gelu",
}
TRANSFORMER = {
    "vocabulary": 36550,
    "hidden": 512,
    "heads": 8,
    "filter": 2048,
    "layers": 6,
    "rate": 0.1,
    "activation": "relu",
}
KERAS = {"norm": p.KerasLayerNormalization, "dense": p.KerasDenseLayer, "scale": "divide"}


def gpt2(sizes: dict[str, Any]) -> ModuleOp:
    with model_graph(1) as step:
        ids, labels, mask = (v1.placeholder(tf.int32, [32, 1024]) for _ in range(3))
        loss = p.token_loss(p.gpt2_logits(ids, sizes), labels, mask)
        op, norm = p.train_op(loss)
        return imported(step, [ids, labels, mask], {"loss": loss, "norm": norm}, op).module


def transformer(sizes: dict[str, Any]) -> ModuleOp:
    with model_graph(1) as step:
        inputs = [v1.placeholder(tf.int32, [256, 256]) for _ in range(5)]
        source, source_mask, target, labels, mask = inputs
        logits = p.transformer_logits(source, source_mask, target, sizes)
        loss = p.token_loss(logits, labels, mask)
        op, norm = p.train_op(loss)
        return imported(step, inputs, {"loss": loss, "norm": norm}, op).module


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("manner", [{}, KERAS])
def test_gpt2_small(manner: dict[str, Any]) -> None:
    _, rate = kernels_and_rate(gpt2({**GPT2_SMALL, **manner}))
    assert rate == pytest.approx(860.3, rel=0.05)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("changes", "published"),
    [
        ({}, 5893.0),
        ({"filter": 1024, **KERAS}, 5893.0),
        ({"hidden": 256, "heads": 2, "filter": 1024}, 5887.1),
    ],
)
def test_transformer(changes: dict[str, Any], published: float) -> None:
    _, rate = kernels_and_rate(transformer({**TRANSFORMER, **changes}))
    assert rate == pytest.approx(published, rel=0.05)
