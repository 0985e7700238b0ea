"""Metrics of an evaluation."""

from cstorch.metrics.classes import (
    DiceCoefficientMetric,
    FBetaScoreMetric,
    MeanIOUMetric,
    MeanPerClassAccuracyMetric,
)
from cstorch.metrics.means import AccuracyMetric, MeanMetric, PerplexityMetric
from cstorch.metrics.metric import Metric, all_metrics, compute_all_metrics
from cstorch.metrics.ranking import AUCMetric, PrecisionAtKMetric, RecallAtKMetric

__all__ = [
    "AUCMetric",
    "AccuracyMetric",
    "DiceCoefficientMetric",
    "FBetaScoreMetric",
    "MeanIOUMetric",
    "MeanMetric",
    "MeanPerClassAccuracyMetric",
    "Metric",
    "PerplexityMetric",
    "PrecisionAtKMetric",
    "RecallAtKMetric",
    "all_metrics",
    "compute_all_metrics",
]
