"""`tf.estimator`, which TensorFlow 2.16 removed: the names that programs use, with the toolkit's estimator.

A `tf.estimator.Estimator` runs on this CPU, as always; CerebrasEstimator is the one for the CS system.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_TOOLKIT = (
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "train_and_evaluate",
)
# Names that tf.estimator re-exported from tf.compat.v1.train, where they still exist.
_TRAIN = (
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "VocabInfo",
)

_NAMES = ("Estimator", "experimental", *_TOOLKIT, *_TRAIN)


def __getattr__(name: str) -> Any:
    if name == "Estimator":
        return import_module("cs_compat.tensorflow.estimators").Estimator
    if name == "experimental":
        return import_module("estimator.early_stopping")
    if name in _TOOLKIT:
        return getattr(import_module("estimator"), name)
    if name in _TRAIN:
        return getattr(import_module("tensorflow").compat.v1.train, name)
    raise AttributeError(f"module 'tensorflow.estimator' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(_NAMES)
