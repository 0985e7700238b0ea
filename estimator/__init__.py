"""The TensorFlow front end: CerebrasEstimator, KerasEstimator, their configuration and their hooks."""

# Names are resolved on first use, so `import estimator` does not import TensorFlow.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cs_runtime.run_files import write_params
    from estimator.config import CSRunConfig, RunConfig
    from estimator.early_stopping import (
        make_early_stopping_hook,
        stop_if_higher_hook,
        stop_if_lower_hook,
        stop_if_no_decrease_hook,
        stop_if_no_increase_hook,
    )
    from estimator.errors import report_errors
    from estimator.estimators import CerebrasEstimator, train_and_evaluate
    from estimator.keras import KerasEstimator, keras_model_fn
    from estimator.loss_scaling import loss_scale_optimizer
    from estimator.model_fusion import ModelInfo, MultiModelFusion
    from estimator.spec import (
        CSEstimatorSpec,
        EstimatorSpec,
        EvalSpec,
        ModeKeys,
        TrainSpec,
        WarmStartSettings,
    )
    from estimator.startup import import_tensorflow

# The value of `tf.data.AUTOTUNE`, by the name that programs for CS systems use.
CS_AUTOTUNE = -1

__all__ = [
    "CS_AUTOTUNE",
    "CSEstimatorSpec",
    "CSRunConfig",
    "CerebrasEstimator",
    "EstimatorSpec",
    "EvalSpec",
    "KerasEstimator",
    "ModeKeys",
    "ModelInfo",
    "MultiModelFusion",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "import_tensorflow",
    "keras_model_fn",
    "loss_scale_optimizer",
    "make_early_stopping_hook",
    "report_errors",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
    "train_and_evaluate",
    "write_params",
]

_HOMES = {
    "CSEstimatorSpec": "estimator.spec",
    "CSRunConfig": "estimator.config",
    "CerebrasEstimator": "estimator.estimators",
    "EstimatorSpec": "estimator.spec",
    "EvalSpec": "estimator.spec",
    "KerasEstimator": "estimator.keras",
    "ModeKeys": "estimator.spec",
    "ModelInfo": "estimator.model_fusion",
    "MultiModelFusion": "estimator.model_fusion",
    "RunConfig": "estimator.config",
    "TrainSpec": "estimator.spec",
    "WarmStartSettings": "estimator.spec",
    "import_tensorflow": "estimator.startup",
    "keras_model_fn": "estimator.keras",
    "loss_scale_optimizer": "estimator.loss_scaling",
    "make_early_stopping_hook": "estimator.early_stopping",
    "report_errors": "estimator.errors",
    "stop_if_higher_hook": "estimator.early_stopping",
    "stop_if_lower_hook": "estimator.early_stopping",
    "stop_if_no_decrease_hook": "estimator.early_stopping",
    "stop_if_no_increase_hook": "estimator.early_stopping",
    "train_and_evaluate": "estimator.estimators",
    "write_params": "cs_runtime.run_files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'estimator' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
