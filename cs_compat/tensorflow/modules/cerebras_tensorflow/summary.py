"""Summaries and types within a model."""

from cerebras.tf.tf_helper import (  # type: ignore[import-not-found]  # in another folder
    boundary_cast,
    summarize_tensor,
    summary_layer,
)

__all__ = ["boundary_cast", "summarize_tensor", "summary_layer"]
