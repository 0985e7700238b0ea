"""What a model of the programs has, and the `model_fn` around it."""

import tensorflow as tf

from common.base_layer import set_precision
from common.stack import EstimatorSpec
from common.trainer import Trainer

ModeKeys = tf.estimator.ModeKeys


class BaseModel:
    """Derived classes build the graph of the forward pass, the loss, metrics and predictions.

    Args:
        params: All parameters of the program; models may write into them.
    """

    def __init__(self, params):
        self.settings = params["model"]
        self.policy = set_precision(self.settings["mixed_precision"])
        self.casting = self.settings["boundary_casting"]
        self.trainer = Trainer(params["optimizer"], self.settings["tf_summary"])

    def layer_arguments(self, name):
        return {"name": name, "dtype": self.policy, "boundary_casting": self.casting}

    def build_model(self, features, mode):
        raise NotImplementedError

    def build_total_loss(self, outputs, features, labels, mode):
        raise NotImplementedError

    def build_eval_metric_ops(self, outputs, features, labels):
        """(function, tensors) of a host call."""
        raise NotImplementedError

    def build_predictions(self, outputs):
        raise NotImplementedError

    def build_train_ops(self, total_loss):
        return self.trainer.build_train_ops(total_loss)


def spec_of(model, features, labels, mode):
    """The EstimatorSpec of a mode; this is what a program's `model_fn` ends with."""
    outputs = model.build_model(features, mode)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=model.build_predictions(outputs))
    total_loss = model.build_total_loss(outputs, features, labels, mode)
    if mode == ModeKeys.EVAL:
        host_call = model.build_eval_metric_ops(outputs, features, labels)
        return EstimatorSpec(mode, loss=total_loss, host_call=host_call)
    train_op = model.build_train_ops(total_loss)
    hooks = None if not model.trainer.log_hooks else model.trainer.log_hooks
    return EstimatorSpec(mode, loss=total_loss, train_op=train_op, training_hooks=hooks)
