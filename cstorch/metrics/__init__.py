"""Metrics of an evaluation."""

from cstorch.metrics.classes import (
    DiceCoefficientMetric,
    FBetaScoreMetric,
    MeanIOUMetric,
    MeanPerClassAccuracyMetric,
)
from cstorch.metrics.means import AccuracyMetric, MeanMetric, PerplexityMetric
from cstorch.metrics.metric import Metric, compute_all_metrics, get_all_metrics
from cstorch.metrics.ranking import AUCMetric, PrecisionAtKMetric, RecallAtKMetric

Accuracy = AccuracyMetric
AUC = AUCMetric
DiceCoefficient = DiceCoefficientMetric
FBeta = FBetaScore = FBetaScoreMetric
Mean = MeanMetric
MeanIOU = MeanIOUMetric
MeanPerClassAccuracy = MeanPerClassAccuracyMetric
Perplexity = PerplexityMetric
PrecisionAtK = PrecisionAtKMetric
RecallAtK = RecallAtKMetric

__all__ = [
    "AUC",
    "AUCMetric",
    "Accuracy",
    "AccuracyMetric",
    "DiceCoefficient",
    "DiceCoefficientMetric",
    "FBeta",
    "FBetaScore",
    "FBetaScoreMetric",
    "Mean",
    "MeanIOU",
    "MeanIOUMetric",
    "MeanMetric",
    "MeanPerClassAccuracy",
    "MeanPerClassAccuracyMetric",
    "Metric",
    "Perplexity",
    "PerplexityMetric",
    "PrecisionAtK",
    "PrecisionAtKMetric",
    "RecallAtK",
    "RecallAtKMetric",
    "compute_all_metrics",
    "get_all_metrics",
]
