"""Fusion of several models into one program."""

from estimator.config import MULTI_MODEL_STACK_KEY
from estimator.model_fusion import ModelInfo, MultiModelFusion

__all__ = ["MULTI_MODEL_STACK_KEY", "ModelInfo", "MultiModelFusion"]
