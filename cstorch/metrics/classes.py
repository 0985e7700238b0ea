"""Metrics of a classification, computed from a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cstorch.metrics.metric import Metric
from cstorch.metrics.shapes import positive_count, ratio, same_shapes


def _one_hot(classes: torch.Tensor, number: int) -> torch.Tensor:
    """[entries, classes] of 0 and 1; classes outside of the range are all 0."""
    return (classes.reshape(-1, 1) == torch.arange(number)).float()


def _mean_of(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Mean of the values that are there."""
    return ratio(torch.where(there, values, 0.0).sum(), there.float().sum())


class _ConfusionMetric(Metric):
    """Counts pairs of label and prediction, [labels, predictions]."""

    def __init__(self, num_classes: int, name: str) -> None:
        super().__init__(name)
        self.num_classes = positive_count("num_classes", num_classes)
        self.register_state("confusion_matrix", torch.zeros(num_classes, num_classes))
        self.confusion_matrix: torch.Tensor

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
        found = _one_hot(predictions, self.num_classes)
        if weights is not None:
            found = found * weights.reshape(-1, 1)
        self.confusion_matrix.add_(_one_hot(labels, self.num_classes).t() @ found)
        self._dtype = dtype

    _dtype: torch.dtype | None = None

    def _counts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """By class: right ones, those with that label, those with that prediction."""
        matrix = self.confusion_matrix
        return torch.diagonal(matrix), matrix.sum(1), matrix.sum(0)

    def _typed(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self._dtype or value.dtype)


class MeanIOUMetric(_ConfusionMetric):
    """Intersection over union of labels and predictions, mean of the classes that occur."""

    def __init__(self, num_classes: int, name: str = "mean_iou") -> None:
        super().__init__(num_classes, name)

    def compute(self) -> torch.Tensor:
        """The mean; 0 before the first batch."""
        right, labels, predictions = self._counts()
        union = labels + predictions - right
        return self._typed(_mean_of(ratio(right, union), union != 0))


class DiceCoefficientMetric(_ConfusionMetric):
    """Twice the intersection over the sum of labels and predictions, mean of the classes that occur."""

    def __init__(self, num_classes: int, name: str = "dice_coefficient") -> None:
        super().__init__(num_classes, name)

    def compute(self) -> torch.Tensor:
        """The mean; 0 before the first batch."""
        right, labels, predictions = self._counts()
        both = labels + predictions
        return self._typed(_mean_of(ratio(2 * right, both), both != 0))


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
        name: str = "f_beta_score",
    ) -> None:
        super().__init__(num_classes, name)
        if beta <= 0:
            raise ValueError(f"got beta={beta}, expected a number above 0")
        if average_type not in ("micro", "macro"):
            raise ValueError(f"got average_type={average_type!r}, expected 'micro' or 'macro'")
        ignored = set(ignore_labels or ())
        if not ignored <= set(range(num_classes)):
            raise ValueError(f"got ignore_labels={ignore_labels}, expected classes below {num_classes}")
        self.beta, self.average_type = beta, average_type
        self._kept = [float(label not in ignored) for label in range(num_classes)]

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

    def __init__(self, num_classes: int, name: str = "mean_per_class_accuracy") -> None:
        super().__init__(name)
        self.num_classes = positive_count("num_classes", num_classes)
        self.register_state("total_per_class_correct_predictions", torch.zeros(num_classes))
        self.register_state("total_per_class_tokens", torch.zeros(num_classes))
        self.total_per_class_correct_predictions: torch.Tensor
        self.total_per_class_tokens: torch.Tensor
        self._dtype: torch.dtype | None = None

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
        found = ratio(self.total_per_class_correct_predictions, self.total_per_class_tokens).mean()
        return found.to(self._dtype or found.dtype)
