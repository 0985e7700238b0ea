"""Metrics that are a sum over a count: accuracy, perplexity, mean."""

from __future__ import annotations

import torch

from cstorch.metrics.metric import Metric
from cstorch.metrics.shapes import as_tensor, shaped_like


def _count(labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor | int:
    """Return the number of weights above 0; of labels without weights."""
    return labels.numel() if weights is None else (weights > 0).sum()


class AccuracyMetric(Metric):
    """Share of the tokens whose prediction is their label; weights of 0 leave tokens out."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("total_correct_predictions", torch.tensor(0.0))
        self.register_state("total_num_tokens", torch.tensor(0.0))
        self.total_correct_predictions: torch.Tensor
        self.total_num_tokens: torch.Tensor

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Adds a batch.

        Args:
            labels: classes, of any shape.
            predictions: classes, one for each label.
            weights: of each token. The sum of those that are right is divided by the number of weights
                above 0.
            dtype: element type of the value.

        Raises:
            ValueError: predictions are more or fewer than labels.
        """
        right = (labels == shaped_like(labels, "predictions", predictions)).float()
        given = None if weights is None else as_tensor(weights)
        self.total_correct_predictions.add_((right if given is None else right * given).sum())
        self.total_num_tokens.add_(_count(labels, given))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Share of right tokens; nan without tokens."""
        return self._typed(self.total_correct_predictions / self.total_num_tokens)


class PerplexityMetric(Metric):
    """Exponential of the loss for each token."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("total_loss", torch.tensor(0.0))
        self.register_state("total_num_tokens", torch.tensor(0.0))
        self.total_loss: torch.Tensor
        self.total_num_tokens: torch.Tensor

    def update(
        self,
        labels: torch.Tensor,
        loss: torch.Tensor | float,
        weights: torch.Tensor | float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Adds a batch.

        Args:
            labels: says how many tokens there are; of any shape.
            loss: cross entropy in nats, summed over the tokens.
            weights: of each token; only tokens with a weight above 0 count.
            dtype: element type of the value.
        """
        self.total_loss.add_(loss)
        self.total_num_tokens.add_(_count(labels, None if weights is None else as_tensor(weights)))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Perplexity; nan without tokens."""
        return self._typed(torch.exp(self.total_loss / self.total_num_tokens))


class MeanMetric(Metric):
    """Weighted mean of all values."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("mean_value", torch.tensor(0.0))
        self.register_state("weight", torch.tensor(0.0))
        self.mean_value: torch.Tensor
        self.weight: torch.Tensor

    def update(
        self,
        value: torch.Tensor | float,
        weight: torch.Tensor | float | None = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Adds values.

        Args:
            value: a number, or a tensor of any shape.
            weight: one for all values, or one for each.
            dtype: element type of the mean.
        """
        values = as_tensor(value)
        given = as_tensor(1.0 if weight is None else weight).expand(values.shape)
        self.mean_value.add_((values * given).sum())
        self.weight.add_(given.sum())
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """The mean; nan without weight."""
        return self._typed(self.mean_value / self.weight)
