"""Metrics of a classification, computed from a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cstorch.metrics.metric import Metric
from cstorch.metrics.shapes import positive_count, ratio, refuse_outside, same_shapes


def _one_hot(classes: torch.Tensor, number: int) -> torch.Tensor:
    """[entries, classes] of 0 and 1; classes outside of the range are all 0."""
    return (classes.reshape(-1, 1) == torch.arange(number)).float()


def _mean_of(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Mean of the values that are there."""
    return ratio(torch.where(there, values, 0.0).sum(), there.float().sum())


def _kept(num_classes: int, name: str, ignored: Sequence[int] | None) -> list[float]:
    """Return 1 for each class that counts, 0 for those ignored.

    Raises:
        ValueError: one that is ignored is no class.
    """
    left_out = set(ignored or ())
    if not left_out <= set(range(num_classes)):
        raise ValueError(f"got {name}={ignored}, expected classes below {num_classes}")
    return [float(label not in left_out) for label in range(num_classes)]


class _ConfusionMetric(Metric):
    """Counts pairs of label and prediction, [labels, predictions]."""

    def __init__(self, num_classes: int, name: str | None) -> None:
        super().__init__(name or type(self).__name__)
        self.num_classes = positive_count("num_classes", num_classes)
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
            refuse_outside(name, classes, 0, last, f"classes from 0 to {last}, as num_classes says")
        found = _one_hot(predictions, self.num_classes)
        if weights is not None:
            found = found * weights.reshape(-1, 1)
        self.confusion_matrix.add_(_one_hot(labels, self.num_classes).t() @ found)
        self._dtype = dtype

    def _counts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """By class: right ones, those with that label, those with that prediction."""
        matrix = self.confusion_matrix
        return torch.diagonal(matrix), matrix.sum(1), matrix.sum(0)


class _OverlapMetric(_ConfusionMetric):
    """Compares the labels of a class with its predictions, mean of the classes that occur.

    Args:
        num_classes: number of classes.
        ignore_classes: classes that are left out of the mean.
        name: name of the metric, by default that of its class.

    Raises:
        ValueError: one that is ignored is no class.
    """

    def __init__(
        self, num_classes: int, ignore_classes: Sequence[int] | None = None, name: str | None = None
    ) -> None:
        super().__init__(num_classes, name)
        self._kept = _kept(num_classes, "ignore_classes", ignore_classes)

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Adds a batch of classes, of any shape; weights have the same.

        Raises:
            ValueError: shapes differ.
        """
        same_shapes(labels=labels, predictions=predictions, weights=weights)
        self._add(labels, predictions, weights, dtype)

    def _mean(self, shared: torch.Tensor, all_of_class: torch.Tensor) -> torch.Tensor:
        counted = (all_of_class != 0) & (torch.tensor(self._kept) != 0)
        return self._typed(_mean_of(ratio(shared, all_of_class), counted))


class MeanIOUMetric(_OverlapMetric):
    """Intersection over union of labels and predictions, mean of the classes that occur."""

    def compute(self) -> torch.Tensor:
        """The mean; 0 before the first batch."""
        right, labels, predictions = self._counts()
        return self._mean(right, labels + predictions - right)


class DiceCoefficientMetric(_OverlapMetric):
    """Twice the intersection over the sum of labels and predictions, mean of the classes that occur."""

    def compute(self) -> torch.Tensor:
        """The mean; 0 before the first batch."""
        right, labels, predictions = self._counts()
        return self._mean(2 * right, labels + predictions)


class FBetaScoreMetric(_ConfusionMetric):
    """Weighted harmonic mean of precision and recall, (1 + b^2) P R / (b^2 P + R).

    Args:
        num_classes: number of classes.
        beta: weight of recall against precision.
        average_type: "micro" counts all tokens alike, "macro" is the mean of the classes.
        ignore_labels: classes that do not count.
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
        self._kept = _kept(num_classes, "ignore_labels", ignore_labels)

    def update(
        self, labels: torch.Tensor, predictions: torch.Tensor, dtype: torch.dtype | None = None
    ) -> None:
        """Adds a batch of classes, of any shape.

        Raises:
            ValueError: shapes differ, or there are other classes, where values can be read.
        """
        same_shapes(labels=labels, predictions=predictions)
        self._add(labels, predictions, None, dtype)

    def compute(self) -> torch.Tensor:
        """The score; 0 where nothing is right."""
        kept = torch.tensor(self._kept)
        right, labels, predictions = (count * kept for count in self._counts())
        if self.average_type == "micro":
            right, labels, predictions = right.sum(), labels.sum(), predictions.sum()
        square = self.beta**2
        score = ratio((1 + square) * right, square * labels + predictions)
        return self._typed(score if self.average_type == "micro" else _mean_of(score, kept != 0))


class MeanPerClassAccuracyMetric(Metric):
    """Mean over the classes of the share of their tokens that are right."""

    def __init__(self, num_classes: int, name: str | None = None) -> None:
        super().__init__(name or type(self).__name__)
        self.num_classes = positive_count("num_classes", num_classes)
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
        """Adds a batch of classes, of any shape; weights have the same.

        Raises:
            ValueError: shapes differ.
        """
        same_shapes(labels=labels, predictions=predictions, weights=weights)
        tokens = _one_hot(labels, self.num_classes)
        if weights is not None:
            tokens = tokens * weights.reshape(-1, 1)
        right = (labels == predictions).reshape(-1, 1)
        self.total_per_class_correct_predictions.add_((tokens * right).sum(0))
        self.total_per_class_tokens.add_(tokens.sum(0))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """The mean; classes without a token count as 0."""
        return self._typed(
            ratio(self.total_per_class_correct_predictions, self.total_per_class_tokens).mean()
        )
