"""Metrics: values against those of another implementation, and the same inside a step that is traced once."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cstorch import metrics

from .conftest import BothWays

ORACLE = json.loads((Path(__file__).parents[2] / "golden" / "cstorch" / "metrics.json").read_text())


def _given(described: Any) -> Any:
    if isinstance(described, dict):
        return torch.tensor(described["values"], dtype=getattr(torch, described["dtype"]))
    return getattr(torch, described.removeprefix("torch."))


def _batch(update: dict[str, Any]) -> dict[str, Any]:
    return {name: _given(value) for name, value in update.items()}


def _metric(case: dict[str, Any]) -> metrics.Metric:
    found: metrics.Metric = getattr(metrics, case["metric"])(name=case["name"], **case["kwargs"])
    return found


def _assert_is(found: Any, expected: dict[str, Any]) -> None:
    """A value is the recorded one, and a tensor without dimensions exactly where that is one."""
    assert isinstance(found, torch.Tensor) == (expected["type"] == "tensor")
    if isinstance(found, torch.Tensor):
        assert (str(found.dtype), found.dim()) == (f"torch.{expected['dtype']}", 0)
    else:
        assert type(found).__name__ == expected["type"]
    np.testing.assert_allclose(float(found), float(expected["value"]), 1e-6, 1e-7)


CASES = pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: case["name"])


@CASES
def test_values_states_and_reset(case: dict[str, Any]) -> None:
    metric = _metric(case)
    for i, update in enumerate(case["updates"]):
        metric.update(**_batch(update))
        assert metric.num_updates == case["num_updates"][i]
        found, expected = metric.compute(), case["value_after_update"][i]
        _assert_is(found, expected)
    for name, state in case["states"].items():
        values = metric.get_buffer(name)
        assert list(values.shape) == state["shape"]
        if "values" in state:
            np.testing.assert_allclose(values.numpy(), state["values"], 1e-6)
        else:
            assert float(values.sum()) == pytest.approx(state["sum"], rel=1e-6)
    assert list(metric.state_dict()) == case["state_dict_keys"]
    metric.reset()
    assert metric.num_updates == 0
    assert all(not buffer.any() for buffer in metric.buffers())
    again = metric(**_batch(case["updates"][-1]))
    expected = case["call_after_reset_with_last_update"]
    _assert_is(again, expected["returned"])
    assert metric.num_updates == expected["num_updates"]


@CASES
def test_traced_once_it_counts_every_batch(both_ways: Callable[..., BothWays], case: dict[str, Any]) -> None:
    names = list(case["updates"][0])
    constants = {name: value for name, value in _batch(case["updates"][0]).items() if name == "dtype"}
    tensors = [name for name in names if name not in constants]

    def step(metric: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(metric(**dict(zip(tensors, batch, strict=True)), **constants)).float()

    batches = [[_given(update[name]) for name in tensors] for update in case["updates"]]
    found = both_ways(_metric(case), step, *batches)
    np.testing.assert_allclose(found.compiled.values, found.eager, 1e-6, 1e-7)
    expected = [[float(value["value"])] for value in case["value_after_update"]]
    np.testing.assert_allclose(found.compiled.values, expected, 1e-6, 1e-7)
    assert int(found.compiled.state["state.model._updates"]) == len(batches)


@pytest.mark.parametrize("case", ORACLE["errors"], ids=lambda case: case["message"][:40])
def test_bad_arguments(case: dict[str, Any]) -> None:
    def use() -> None:
        metric = getattr(metrics, case["metric"])(name="bad", **case["kwargs"])
        metric.update(**_batch(case["update"]))

    assert case["raises"] == "ValueError"
    with pytest.raises(ValueError, match=r"got .*expected"):
        use()


def test_all_metrics_by_name() -> None:
    accuracy = metrics.AccuracyMetric("accuracy", compute_on_system=True)
    metrics.MeanMetric("gone")
    gc.collect()
    accuracy(labels=torch.tensor([1, 2]), predictions=torch.tensor([1, 3]))
    assert dict(metrics.get_all_metrics())["accuracy"] is accuracy
    assert dict(metrics.compute_all_metrics())["accuracy"] == 0.5
    assert "gone" not in dict(metrics.get_all_metrics().items())


def test_metrics_of_one_name_are_numbered() -> None:
    first, second = metrics.MeanMetric("shared"), metrics.MeanMetric("shared")
    first.update(torch.tensor(1.0))
    second.update(torch.tensor(3.0))
    found = dict(metrics.compute_all_metrics())
    assert (found["shared.0"], found["shared.1"]) == (1, 3)


class TopK(metrics.Metric):
    """A metric whose states are made by `reset`, as the original documents it."""

    def __init__(self, k: int) -> None:
        self.k = k
        super().__init__(name="top_k")

    def reset(self) -> None:
        self.register_state("right", torch.tensor(0.0))
        self.register_state("total", torch.tensor(0))

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        best = scores.topk(self.k, dim=-1).indices
        self.right.add_((best == labels[:, None]).any(-1).sum())
        self.total.add_(labels.numel())

    def compute(self) -> torch.Tensor:
        return torch.as_tensor(self.right / self.total)


def test_states_that_reset_registers(both_ways: Callable[..., BothWays]) -> None:
    metric = TopK(2)
    states = {name: id(state) for name, state in metric.named_buffers()}
    scores, labels = torch.tensor([[4.0, 3, 2, 1]] * 4), torch.tensor([0, 1, 1, 3])
    assert float(metric(scores, labels)) == 0.75
    assert metric.num_updates == 1
    metric.reset()
    assert (metric.num_updates, float(metric.right), int(metric.total)) == (0, 0, 0)
    assert {name: id(state) for name, state in metric.named_buffers()} == states
    found = both_ways(
        metric,
        lambda metric, scores, labels: metric(scores, labels).float(),
        [scores, labels],
        [scores, torch.full_like(labels, 3)],
    )
    np.testing.assert_allclose(found.compiled.values, found.eager, 1e-6)


def test_a_metric_of_ones_own() -> None:
    class Largest(metrics.MeanMetric):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.register_state("largest", torch.tensor(-1.0), persistent=True)
            self.largest: torch.Tensor

        def update(self, value: torch.Tensor, weight: torch.Tensor | None = None) -> None:
            super().update(value, weight)
            self.largest.copy_(torch.maximum(self.largest, value.max()))

        def compute(self) -> torch.Tensor:
            return self.largest - super().compute()

    metric = Largest("largest")
    assert float(metric(torch.tensor([1.0, 3.0]))) == 1
    assert metric.num_updates == 1
    assert list(metric.state_dict()) == ["largest"]
    metric.reset()
    assert float(metric.largest) == -1


def test_micro_average_is_the_share_of_right_ones() -> None:
    labels, predictions = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 2, 2])
    score = metrics.FBetaScoreMetric(3)
    assert float(score(labels, predictions)) == 0.75
    with pytest.raises(ValueError, match="got average_type='mean', expected 'micro' or 'macro'"):
        metrics.FBetaScoreMetric(3, average_type="mean")


def test_predictions_of_another_shape_are_taken_in_the_shape_of_the_labels() -> None:
    labels, predictions = torch.tensor([[1], [2]]), torch.tensor([1, 3])
    metric = metrics.AccuracyMetric("accuracy")
    with pytest.warns(UserWarning, match="labels of shape .2, 1., predictions of shape .2,."):
        metric.update(labels, predictions)
    assert float(metric) == 0.5
    with pytest.raises(ValueError, match="expected an entry of predictions for each label"):
        metric.update(labels, torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("kind", [metrics.MeanIOUMetric, metrics.FBetaScoreMetric])
def test_labels_outside_of_the_classes_are_refused(kind: Any) -> None:
    metric, right = kind(3), torch.tensor([0, 2])
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="expected classes from 0 to 2"):
            metric.update(right, torch.tensor([wrong, 1]))
    with pytest.raises(ValueError, match="expected one shape for all"):
        metric.update(right, right.reshape(2, 1))
    with pytest.raises(ValueError, match="got num_classes=1, expected at least 2"):
        metrics.FBetaScoreMetric(1)


def test_numbers_weigh_and_are_weighed() -> None:
    labels, predictions = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])
    accuracy = metrics.AccuracyMetric("accuracy")
    assert float(accuracy(labels, predictions, weights=1.0)) == 2.0  # over one weight
    mean = metrics.MeanMetric("mean")
    mean.update(3.0)
    mean.update(torch.tensor([1.0, 2.0]), weight=0.5)
    mean.update(5, torch.tensor(2.0), dtype=torch.bfloat16)
    assert float(mean.weight) == 4.0
    assert mean.compute().dtype is torch.bfloat16
    assert float(mean) == pytest.approx(14.5 / 4, rel=1e-2)
    loss = metrics.PerplexityMetric("perplexity")
    assert float(loss(labels, 3 * math.log(2.0))) == pytest.approx(2.0)
    recall = metrics.RecallAtKMetric(1)
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    assert recall(torch.tensor([[1], [1]]), scores, weights=2.0) == 0.5
    assert recall.name == "RecallAtKMetric"


@pytest.mark.parametrize("kind", [metrics.MeanIOUMetric, metrics.DiceCoefficientMetric])
def test_classes_left_out_of_a_mean(kind: Any) -> None:
    labels, predictions = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 0])
    whole, part = kind(3), kind(3, ignore_classes=[2])
    for metric in (whole, part):
        metric.update(labels, predictions)
    assert float(whole) * 3 == pytest.approx(float(part) * 2)
    with pytest.raises(ValueError, match=r"got ignore_classes=\[3\], expected classes below 3"):
        kind(3, [3])
