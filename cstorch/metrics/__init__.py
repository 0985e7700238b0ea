"""Metrics of an evaluation."""

from cstorch.metrics.classification import (
    AUCMetric,
    DiceCoefficientMetric,
    FBetaScoreMetric,
    MeanIOUMetric,
    MeanPerClassAccuracyMetric,
    PrecisionAtKMetric,
    RecallAtKMetric,
)
from cstorch.metrics.metric import (
    AccuracyMetric,
    MeanMetric,
    Metric,
    PerplexityMetric,
    compute_all_metrics,
    get_all_metrics,
)

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
