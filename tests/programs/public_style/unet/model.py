"""Convolutions on ever smaller images and back, with bridges between images of one size."""

import tensorflow as tf
from common.base_layer import BaseLayer
from common.base_model import BaseModel, spec_of
from common.layers import ActivationLayer
from tensorflow.keras.layers import BatchNormalization, Conv2D, Conv2DTranspose
from tensorflow.python.keras.layers import MaxPooling2D, concatenate

v1 = tf.compat.v1


class Conv2DLayer(BaseLayer):
    """Arguments stand in the order that Keras had before there were groups of channels."""

    def __init__(self, filters, kernel_size, data_format, activation=None, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        self.layer = Conv2D(
            filters,
            kernel_size,
            (1, 1),
            "same",
            data_format,
            (1, 1),
            None,
            use_bias,
            "he_normal",
            dtype=self.dtype_policy,
            name="conv",
        )
        self.activation = ActivationLayer(activation, dtype=self.dtype_policy)

    def call(self, inputs):
        return self.leave(self.activation(self.layer(self.enter(inputs))))


class UNetModel(BaseModel):
    def build_model(self, features, mode):
        s = self.settings
        self.training = mode == tf.estimator.ModeKeys.TRAIN
        x = tf.cast(features, self.policy.compute_dtype)
        bridges = []
        for depth in range(s["depth"]):
            x = self.block(x, s["initial_filters"] * 2**depth, f"down_{depth}")
            bridges.append(x)
            x = MaxPooling2D(2, data_format=s["data_format"], dtype=self.policy, name=f"pool_{depth}")(x)
        x = self.block(x, s["initial_filters"] * 2 ** s["depth"], "bottom")
        for depth in reversed(range(s["depth"])):
            filters = s["initial_filters"] * 2**depth
            up = Conv2DTranspose(
                filters, 2, 2, "same", data_format=s["data_format"], dtype=self.policy, name=f"up_{depth}"
            )
            x = concatenate([up(x), bridges[depth]], axis=self.channels)
            x = self.block(x, filters, f"up_block_{depth}")
        return Conv2DLayer(s["num_classes"], 1, s["data_format"], **self.layer_arguments("logits"))(x)

    @property
    def channels(self):
        return 1 if self.settings["data_format"] == "channels_first" else -1

    def block(self, x, filters, name):
        s = self.settings
        for number in range(2):
            arguments = self.layer_arguments(f"{name}_{number}")
            x = Conv2DLayer(filters, 3, s["data_format"], "relu", s["enable_bias"], **arguments)(x)
            if s["batch_norm"]:
                norm = BatchNormalization(self.channels, dtype=self.policy, name=f"{name}_{number}_norm")
                x = norm(x, training=self.training)
        return x

    def classes_last(self, outputs):
        logits = tf.cast(outputs, tf.float32)
        return tf.transpose(logits, [0, 2, 3, 1]) if self.channels == 1 else logits

    def build_total_loss(self, outputs, features, labels, mode):
        logits = tf.reshape(self.classes_last(outputs), [-1, self.settings["num_classes"]])
        flat = tf.reshape(labels, [-1])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=flat, logits=logits))

    def build_eval_metric_ops(self, outputs, features, labels):
        def metrics(labels, classes):
            return {
                "eval/accuracy": v1.metrics.accuracy(labels, classes),
                "eval/mean_iou": v1.metrics.mean_iou(labels, classes, self.settings["num_classes"]),
            }

        return metrics, [labels, tf.argmax(self.classes_last(outputs), -1, tf.int32)]

    def build_predictions(self, outputs):
        return {"classes": tf.argmax(self.classes_last(outputs), -1, tf.int32)}


def model_fn(features, labels, mode, params):
    params["model"]["depth"] = params["model"].get("depth") or 1
    params["model"]["num_output_channels"] = params["model"]["num_classes"]
    return spec_of(UNetModel(params), features, labels, mode)
