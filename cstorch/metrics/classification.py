"""Metrics of classification: from a confusion matrix, of the K best classes, and area under a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cstorch.metrics.metric import (
    Metric,
    as_number,
    as_tensor,
    check_positive,
    check_range,
    check_same_shapes,
    ratio,
)

_SUMMATIONS = ("interpolation", "majoring", "minoring")
_BEYOND = 1e-7
"""Distance of the first and the last threshold from [0, 1], so that 0 and 1 are inside."""


def _one_hot(classes: torch.Tensor, number: int) -> torch.Tensor:
    """Return [elements, classes] of 0 and 1; rows of classes out of range are all 0."""
    return (classes.reshape(-1, 1) == torch.arange(number)).float()


def _masked_mean(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the mean of the values that count."""
    return ratio(torch.where(counts, values, 0.0).sum(), counts.float().sum())


def _class_weights(num_classes: int, name: str, ignored: Sequence[int] | None) -> list[float]:
    """Return 1 for each class that counts, and 0 for those that are ignored.

    Raises:
        ValueError: an ignored class does not exist.
    """
    left_out = set(ignored or ())
    if not left_out <= set(range(num_classes)):
        raise ValueError(f"got {name}={ignored}, expected classes below {num_classes}")
    return [float(label not in left_out) for label in range(num_classes)]


class _ConfusionMetric(Metric):
    """Counts pairs of label and prediction, [labels, predictions]."""

    def __init__(self, num_classes: int, name: str | None) -> None:
        super().__init__(name or type(self).__name__)
        self.num_classes = check_positive("num_classes", num_classes)
        self.register_state("confusion_matrix", torch.zeros(num_classes, num_classes))
        self.confusion_matrix: torch.Tensor

    def _add(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None,
        dtype: torch.dtype | None,
    ) -> None:
        for name, classes in (("labels", labels), ("predictions", predictions)):
            last = self.num_classes - 1
            check_range(name, classes, 0, last, f"classes from 0 to {last}, as num_classes says")
        found = _one_hot(predictions, self.num_classes)
        if weights is not None:
            found = found * weights.reshape(-1, 1)
        self.confusion_matrix.add_(_one_hot(labels, self.num_classes).t() @ found)
        self._dtype = dtype

    def _counts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return for each class the number of correct predictions, of labels, and of predictions."""
        matrix = self.confusion_matrix
        return torch.diagonal(matrix), matrix.sum(1), matrix.sum(0)


class _OverlapMetric(_ConfusionMetric):
    """Overlap of the labels of a class with its predictions, mean over the classes that occur.

    Args:
        num_classes: number of classes.
        ignore_classes: classes to leave out of the mean.
        name: name of the metric, by default that of its class.

    Raises:
        ValueError: one that is ignored is no class.
    """

    def __init__(
        self, num_classes: int, ignore_classes: Sequence[int] | None = None, name: str | None = None
    ) -> None:
        super().__init__(num_classes, name)
        self._kept = _class_weights(num_classes, "ignore_classes", ignore_classes)

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Add a batch of classes, of any shape; weights have the same.

        Raises:
            ValueError: shapes differ.
        """
        check_same_shapes(labels=labels, predictions=predictions, weights=weights)
        self._add(labels, predictions, weights, dtype)

    def _mean(self, shared: torch.Tensor, all_of_class: torch.Tensor) -> torch.Tensor:
        counted = (all_of_class != 0) & (torch.tensor(self._kept) != 0)
        return self._cast(_masked_mean(ratio(shared, all_of_class), counted))


class MeanIOUMetric(_OverlapMetric):
    """Intersection over union of labels and predictions, mean over the classes that occur."""

    def compute(self) -> torch.Tensor:
        """Return the mean; 0 before the first batch."""
        right, labels, predictions = self._counts()
        return self._mean(right, labels + predictions - right)


class DiceCoefficientMetric(_OverlapMetric):
    """Twice the intersection over the sum of labels and predictions, mean over the classes that occur."""

    def compute(self) -> torch.Tensor:
        """Return the mean; 0 before the first batch."""
        right, labels, predictions = self._counts()
        return self._mean(2 * right, labels + predictions)


class FBetaScoreMetric(_ConfusionMetric):
    """Weighted harmonic mean of precision and recall, (1 + b^2) P R / (b^2 P + R).

    Args:
        num_classes: number of classes.
        beta: weight of recall against precision.
        average_type: "micro" counts all tokens alike, "macro" is the mean of the classes.
        ignore_labels: classes to leave out.
        name: name of the metric.

    Raises:
        ValueError: beta is not positive, or the average type or a label is unknown.
    """

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: str = "micro",
        ignore_labels: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_classes, name)
        if num_classes < 2:
            raise ValueError(f"got num_classes={num_classes}, expected at least 2")
        if beta <= 0:
            raise ValueError(f"got beta={beta}, expected a number above 0")
        if average_type not in ("micro", "macro"):
            raise ValueError(f"got average_type={average_type!r}, expected 'micro' or 'macro'")
        self.beta, self.average_type = beta, average_type
        self._kept = _class_weights(num_classes, "ignore_labels", ignore_labels)

    def update(
        self, labels: torch.Tensor, predictions: torch.Tensor, dtype: torch.dtype | None = None
    ) -> None:
        """Add a batch of classes, of any shape.

        Raises:
            ValueError: shapes differ, or, outside of a step on the CS system, a class is out of range.
        """
        check_same_shapes(labels=labels, predictions=predictions)
        self._add(labels, predictions, None, dtype)

    def compute(self) -> torch.Tensor:
        """Return the score; 0 if no prediction is correct."""
        kept = torch.tensor(self._kept)
        right, labels, predictions = (count * kept for count in self._counts())
        if self.average_type == "micro":
            right, labels, predictions = right.sum(), labels.sum(), predictions.sum()
        square = self.beta**2
        score = ratio((1 + square) * right, square * labels + predictions)
        return self._cast(score if self.average_type == "micro" else _masked_mean(score, kept != 0))


class MeanPerClassAccuracyMetric(Metric):
    """Mean over the classes of the share of their tokens that are predicted correctly."""

    def __init__(self, num_classes: int, name: str | None = None) -> None:
        super().__init__(name or type(self).__name__)
        self.num_classes = check_positive("num_classes", num_classes)
        self.register_state("total_per_class_correct_predictions", torch.zeros(num_classes))
        self.register_state("total_per_class_tokens", torch.zeros(num_classes))
        self.total_per_class_correct_predictions: torch.Tensor
        self.total_per_class_tokens: torch.Tensor

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Add a batch of classes, of any shape; weights have the same.

        Raises:
            ValueError: shapes differ.
        """
        check_same_shapes(labels=labels, predictions=predictions, weights=weights)
        tokens = _one_hot(labels, self.num_classes)
        if weights is not None:
            tokens = tokens * weights.reshape(-1, 1)
        right = (labels == predictions).reshape(-1, 1)
        self.total_per_class_correct_predictions.add_((tokens * right).sum(0))
        self.total_per_class_tokens.add_(tokens.sum(0))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Return the mean; classes without a token count as 0."""
        return self._cast(ratio(self.total_per_class_correct_predictions, self.total_per_class_tokens).mean())


class _AtKMetric(Metric):
    """A metric of labels that are among the K classes with the largest scores."""

    def __init__(self, k: int, name: str | None = None) -> None:
        super().__init__(name or type(self).__name__)
        self.k = check_positive("k", k)
        self.register_state("true_positive_at_k", torch.tensor(0.0))
        self.true_positive_at_k: torch.Tensor

    def _hits(
        self, labels: torch.Tensor, predictions: torch.Tensor, weights: torch.Tensor | float | None
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return hits and weights of each sample, and the number of labels of a sample.

        Raises:
            ValueError: weights are neither a scalar nor one for each sample.
        """
        labels = labels.reshape(predictions.shape[0], -1)
        given = as_tensor(1.0 if weights is None else weights)
        if given.dim() and given.numel() != labels.shape[0]:
            raise ValueError(
                f"got weights of shape {tuple(given.shape)} for labels of shape {tuple(labels.shape)}; "
                f"expected a scalar or {labels.shape[0]} weights, one for each sample"
            )
        best = torch.topk(predictions, self.k, dim=-1).indices
        found = (best.unsqueeze(-1) == labels.unsqueeze(-2)).any(-1).float().sum(-1)
        return found, given, labels.shape[1]


class PrecisionAtKMetric(_AtKMetric):
    """Share of the K best classes that are labels."""

    def __init__(self, k: int, name: str | None = None) -> None:
        super().__init__(k, name)
        self.register_state("false_positive_at_k", torch.tensor(0.0))
        self.false_positive_at_k: torch.Tensor

    def update(
        self, labels: torch.Tensor, predictions: torch.Tensor, weights: torch.Tensor | float | None = None
    ) -> None:
        """Add a batch.

        Args:
            labels: [samples] or [samples, labels] classes.
            predictions: [samples, classes] scores.
            weights: a scalar or [samples].

        Raises:
            ValueError: the weights have another shape.
        """
        hits, weight, _ = self._hits(labels, predictions, weights)
        self.true_positive_at_k.add_((hits * weight).sum())
        self.false_positive_at_k.add_(((self.k - hits) * weight).sum())

    def compute(self) -> torch.Tensor | float:
        """Return the share, as a Python number outside of a recorded step; nan before the first batch."""
        return as_number(self.true_positive_at_k / (self.true_positive_at_k + self.false_positive_at_k))


class RecallAtKMetric(_AtKMetric):
    """Share of the labels that are among the K best classes."""

    def __init__(self, k: int, name: str | None = None) -> None:
        super().__init__(k, name)
        self.register_state("false_negative_at_k", torch.tensor(0.0))
        self.false_negative_at_k: torch.Tensor

    def update(
        self, labels: torch.Tensor, predictions: torch.Tensor, weights: torch.Tensor | float | None = None
    ) -> None:
        """Add a batch, as `PrecisionAtKMetric.update` takes it."""
        hits, weight, labeled = self._hits(labels, predictions, weights)
        self.true_positive_at_k.add_((hits * weight).sum())
        self.false_negative_at_k.add_(((labeled - hits) * weight).sum())

    def compute(self) -> torch.Tensor | float:
        """Return the share, as a Python number outside of a recorded step; nan before the first batch."""
        return as_number(self.true_positive_at_k / (self.true_positive_at_k + self.false_negative_at_k))


class AUCMetric(Metric):
    """Area under a curve over the thresholds of a binary classification.

    Args:
        num_thresholds: number of thresholds, evenly spaced over [0, 1].
        curve: "ROC" (true over false positive rate) or "PR" (precision over recall).
        name: name of the metric, by default that of its class.
        summation_method: "interpolation" is the trapezoidal rule for ROC and, for PR, where precision is not
            linear, that of Davis and Goadrich, The Relationship Between Precision-Recall and ROC Curves, ICML
            2006; "majoring" takes the larger of two neighbors, "minoring" the smaller.
        thresholds: numbers in [0, 1], instead of evenly spaced ones.

    Raises:
        ValueError: an argument has another value.
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        name: str | None = None,
        summation_method: str = "interpolation",
        thresholds: Sequence[float] | None = None,
    ) -> None:
        super().__init__(name or type(self).__name__)
        if curve not in ("ROC", "PR"):
            raise ValueError(f"got curve={curve!r}, expected 'ROC' or 'PR'")
        if summation_method not in _SUMMATIONS:
            raise ValueError(f"got summation_method={summation_method!r}, expected one of {_SUMMATIONS}")
        self.curve, self.summation_method = curve, summation_method
        self._thresholds = _all_thresholds(num_thresholds, thresholds)
        for state in ("true_positive", "true_negative", "false_positive", "false_negative"):
            self.register_state(state, torch.zeros(len(self._thresholds)))
        self.true_positive: torch.Tensor
        self.true_negative: torch.Tensor
        self.false_positive: torch.Tensor
        self.false_negative: torch.Tensor

    def update(
        self, labels: torch.Tensor, predictions: torch.Tensor, weights: torch.Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            labels: 0 and 1, of any shape.
            predictions: probabilities, of the same shape.
            weights: weight of each element.

        Raises:
            ValueError: shapes differ, or, outside of a step on the CS system, a probability is not in [0, 1].
        """
        check_same_shapes(labels=labels, predictions=predictions, weights=weights)
        check_range("predictions", predictions, 0, 1, "probabilities in [0, 1]; apply a sigmoid")
        check_range("labels", labels, 0, math.inf, "0 and 1")
        weight = torch.ones_like(predictions) if weights is None else weights
        weight, label = weight.reshape(-1).float(), labels.reshape(-1) > 0
        limits = torch.tensor(self._thresholds)
        above = (predictions.reshape(1, -1) > limits.reshape(-1, 1)).float()
        positive, negative = weight * label, weight * ~label
        self.true_positive.add_(above @ positive)
        self.false_positive.add_(above @ negative)
        self.false_negative.add_((1 - above) @ positive)
        self.true_negative.add_((1 - above) @ negative)

    def compute(self) -> torch.Tensor | float:
        """Return the area, as a Python number outside of a recorded step."""
        if self.curve == "PR" and self.summation_method == "interpolation":
            return as_number(self.interpolate_pr_auc())
        recall = ratio(self.true_positive, self.true_positive + self.false_negative)
        if self.curve == "ROC":
            x, y = ratio(self.false_positive, self.false_positive + self.true_negative), recall
        else:
            x, y = recall, ratio(self.true_positive, self.true_positive + self.false_positive)
        left, right = y[:-1], y[1:]
        heights = {
            "interpolation": (left + right) / 2,
            "majoring": torch.maximum(left, right),
            "minoring": torch.minimum(left, right),
        }
        return as_number(((x[:-1] - x[1:]) * heights[self.summation_method]).sum())

    def interpolate_pr_auc(self) -> torch.Tensor:
        """Return the area under precision over recall, interpolated between thresholds.

        It is the sum over the steps of slope * (dTP + intercept * log(P_a / P_b)) / positives.
        """
        right, chosen = self.true_positive, self.true_positive + self.false_positive
        gain = right[:-1] - right[1:]
        slope = ratio(gain, (chosen[:-1] - chosen[1:]).clamp(min=0))
        intercept = right[1:] - slope * chosen[1:]
        growth = ratio(chosen[:-1], chosen[1:])
        # The inner `where` avoids log(0): both branches are computed.
        logs = torch.where(growth > 0, torch.where(growth > 0, growth, 1.0).log(), 0.0)
        return ratio(slope * (gain + intercept * logs), right[1:] + self.false_negative[1:]).sum()


def _all_thresholds(number: int, given: Sequence[float] | None) -> list[float]:
    if given is None:
        if number <= 1:
            raise ValueError(f"got num_thresholds={number}, expected at least 2")
        inner = [i / (number - 1) for i in range(1, number - 1)]
    else:
        inner = sorted(given)
        if not all(0 <= threshold <= 1 for threshold in inner):
            raise ValueError(f"got thresholds={list(given)}, expected numbers in [0, 1]")
    return [-_BEYOND, *inner, 1 + _BEYOND]
