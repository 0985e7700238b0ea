"""Several models side by side in one program."""

from estimator.model_fusion import ModelInfo, MultiModelFusion
from estimator.run_config import MULTI_MODEL_STACK_KEY

__all__ = ["MULTI_MODEL_STACK_KEY", "ModelInfo", "MultiModelFusion"]
