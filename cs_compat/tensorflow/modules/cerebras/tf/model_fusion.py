"""Several models side by side in one program."""

from estimator.model_fusion import MULTI_MODEL_STACK_KEY, ModelInfo, MultiModelFusion

__all__ = ["MULTI_MODEL_STACK_KEY", "ModelInfo", "MultiModelFusion"]
