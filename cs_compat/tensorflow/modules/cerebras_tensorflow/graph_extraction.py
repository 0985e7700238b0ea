"""Enables and disables the summaries of a model."""

from cerebras.tf.summary import (  # type: ignore[import-not-found]  # in another folder
    cs1_disable_summaries,
    cs1_enable_summaries,
)

__all__ = ["cs1_disable_summaries", "cs1_enable_summaries"]
