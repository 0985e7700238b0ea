"""A small classifier of keras layers in mixed precision, with a loss scale around the optimizer."""

import numpy as np
import tensorflow as tf
import utils
from tensorflow.keras.mixed_precision.experimental import Policy, set_policy
from tensorflow.python.keras.mixed_precision.experimental.loss_scale_optimizer import (
    LossScaleOptimizer as LossScaleOptimizerV2,
)
from wrappers import Spec, metrics_on_host, summaries

ModeKeys = tf.estimator.ModeKeys


class BaseLayer(tf.keras.layers.Layer):
    """Every layer knows its policy, and says in which types it computes and keeps its weights."""

    def __init__(self, boundary_casting=False, tf_summary=False, **kwargs):
        super().__init__(**kwargs)
        self.boundary_casting = boundary_casting
        self.tf_summary = tf_summary
        self.dtype_policy = kwargs.get("dtype") or tf.keras.mixed_precision.experimental.global_policy()
        self.variable_dtype = self.dtype_policy.variable_dtype
        self.compute_dtype = self.dtype_policy.compute_dtype

    def call(self, inputs, **kwargs):
        from cerebras.tf.tf_helper import boundary_cast, summary_layer

        if self.boundary_casting:
            inputs = boundary_cast(inputs)
        output = self.apply_layer(inputs, **kwargs)
        return summary_layer(output) if self.tf_summary else output


class DenseLayer(BaseLayer):
    def __init__(self, units, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.layer = tf.keras.layers.Dense(
            units, activation=activation, dtype=self.dtype_policy, name="dense"
        )

    def apply_layer(self, inputs):
        return self.layer(inputs)


class Trainer:
    """Builds the training op: gradients of the scaled loss, clipped, applied where they are finite."""

    def __init__(self, params, mixed_precision):
        self.learning_rate = params["learning_rate"]
        self.max_gradient_norm = params["max_gradient_norm"]
        self.mixed_precision = mixed_precision

    def build_train_ops(self, loss):
        optimizer = tf.compat.v1.train.AdamOptimizer(self.learning_rate)
        if self.mixed_precision:
            scale = tf.compat.v1.mixed_precision.DynamicLossScale(2.0**10, 2000, 2.0)
            optimizer = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale)
        assert not isinstance(optimizer, LossScaleOptimizerV2)
        grads_and_vars = optimizer.compute_gradients(loss, tf.compat.v1.trainable_variables())
        gradients, variables = zip(*grads_and_vars, strict=True)
        gradients, norm = tf.clip_by_global_norm(gradients, self.max_gradient_norm)
        tf.compat.v1.summary.scalar("train/clipped_grad_norm", norm)
        return optimizer.apply_gradients(
            zip(gradients, variables, strict=True),
            global_step=tf.compat.v1.train.get_or_create_global_step(),
        )


def model_fn(features, labels, mode, params):
    model_params = params["model"]
    policy = Policy("mixed_float16" if model_params["mixed_precision"] else "float32", loss_scale=None)
    set_policy(policy)
    hidden = DenseLayer(model_params["hidden"], "relu", boundary_casting=True, dtype=policy)(features)
    with summaries(enabled=False):
        tf.compat.v1.summary.scalar("hidden_mean", tf.reduce_mean(tf.cast(hidden, tf.float32)))
    logits = DenseLayer(model_params["classes"], tf_summary=True, dtype=policy)(hidden)
    logits = tf.cast(logits, tf.float32)
    predictions = {"classes": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == ModeKeys.PREDICT:
        return Spec(mode, predictions=predictions)
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == ModeKeys.TRAIN:
        train_op = Trainer(params["optimizer"], model_params["mixed_precision"]).build_train_ops(loss)
        return Spec(mode=mode, loss=loss, train_op=train_op, training_hooks=None)

    def metrics(labels, classes):
        return {"accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=classes)}

    host_call = (metrics, [labels, predictions["classes"]])
    assert set(metrics_on_host(host_call)) == {"accuracy"}
    return Spec(mode=mode, loss=loss, predictions=predictions, host_call=host_call)


def records(params):
    generator = np.random.default_rng(params["seed"])
    x = generator.normal(size=(params["records"], params["features"])).astype(np.float32)
    return x, x[:, : params["classes"]].argmax(1).astype(np.int32)


def input_fn(params, mode):
    data = params["data"]
    x, labels = records(data)
    dataset = tf.data.Dataset.from_tensor_slices((x, labels))
    if mode == ModeKeys.TRAIN:
        dataset = utils.shard_dataset(dataset, data["use_multiple_workers"]).repeat()
    return dataset.batch(data["batch_size"], drop_remainder=True).skip(data.get("skip_steps", 0))
