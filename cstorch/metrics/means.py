"""Metrics that are a sum over a count: accuracy, perplexity, mean."""

from __future__ import annotations

import torch

from cstorch.metrics.metric import Metric
from cstorch.metrics.shapes import same_shapes


def _count(labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor | int:
    """Tokens with a weight other than 0; all of them without weights."""
    return labels.numel() if weights is None else (weights != 0).sum()


class AccuracyMetric(Metric):
    """Share of the tokens whose prediction is their label; weights of 0 leave tokens out."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("total_correct_predictions", torch.tensor(0.0))
        self.register_state("total_num_tokens", torch.tensor(0.0))
        self._dtype: torch.dtype | None = None
        self.total_correct_predictions: torch.Tensor
        self.total_num_tokens: torch.Tensor

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Adds a batch.

        Args:
            labels: classes, of any shape.
            predictions: classes, of the same shape.
            weights: of each token. The sum of those that are right is divided by the number that is not 0.
            dtype: element type of the value.

        Raises:
            ValueError: shapes differ.
        """
        same_shapes(labels=labels, predictions=predictions, weights=weights)
        right = (labels == predictions).float()
        self.total_correct_predictions.add_((right if weights is None else right * weights).sum())
        self.total_num_tokens.add_(_count(labels, weights))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Share of right tokens; nan without tokens."""
        found = self.total_correct_predictions / self.total_num_tokens
        return found.to(self._dtype or found.dtype)


class PerplexityMetric(Metric):
    """Exponential of the loss for each token."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("total_loss", torch.tensor(0.0))
        self.register_state("total_num_tokens", torch.tensor(0.0))
        self._dtype: torch.dtype | None = None
        self.total_loss: torch.Tensor
        self.total_num_tokens: torch.Tensor

    def update(
        self,
        labels: torch.Tensor,
        loss: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Adds a batch.

        Args:
            labels: says how many tokens there are; of any shape.
            loss: cross entropy in nats, summed over the tokens.
            weights: of each token; those of 0 do not count.
            dtype: element type of the value.

        Raises:
            ValueError: shapes differ.
        """
        same_shapes(labels=labels, weights=weights)
        self.total_loss.add_(loss)
        self.total_num_tokens.add_(_count(labels, weights))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Perplexity; nan without tokens."""
        found = torch.exp(self.total_loss / self.total_num_tokens)
        return found.to(self._dtype or found.dtype)


class MeanMetric(Metric):
    """Weighted mean of all values."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("mean_value", torch.tensor(0.0))
        self.register_state("weight", torch.tensor(0.0))
        self.mean_value: torch.Tensor
        self.weight: torch.Tensor

    def update(self, value: torch.Tensor, weight: torch.Tensor | None = None) -> None:
        """Adds values of any shape, with a weight for all or for each."""
        given = torch.ones_like(value) if weight is None else torch.as_tensor(weight).expand_as(value)
        self.mean_value.add_((value * given).sum())
        self.weight.add_(given.sum())

    def compute(self) -> torch.Tensor:
        """The mean; nan without weight."""
        return self.mean_value / self.weight
