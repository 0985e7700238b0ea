"""What a graph is built for."""

from __future__ import annotations

from collections.abc import Mapping

from cs_toolkit.step import Mode


class ModeKeys:
    """Standard names for the modes of a `model_fn`, with the values that `tf.estimator.ModeKeys` had."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)

PROGRAM_MODES: Mapping[str, Mode] = {
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
    ModeKeys.PREDICT: "infer",
}
"""What the compiler calls them."""
