"""What a graph is built for."""

from __future__ import annotations


class ModeKeys:
    """Standard names for the modes of a `model_fn`, with the values that `tf.estimator.ModeKeys` had."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
