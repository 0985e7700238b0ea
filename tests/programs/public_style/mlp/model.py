"""Dense layers of Keras, one behind the other."""

import tensorflow as tf
from common.base_model import BaseModel, ModeKeys, spec_of
from tensorflow.keras.layers import Dense, Dropout, Flatten


class MlpModel(BaseModel):
    def __init__(self, params):
        super().__init__(params)
        self.depth = params["depth"]
        self.hidden_sizes = params["model"]["hidden_sizes"]

    def build_model(self, features, mode):
        s = self.settings
        x = Flatten(dtype=self.policy)(tf.cast(features, self.policy.compute_dtype))
        for number in range(self.depth):
            x = Dense(self.hidden_sizes[number], s["activation"], name=f"fc{number}", dtype=self.policy)(x)
            x = Dropout(s["dropout_rate"], dtype=self.policy)(x, training=mode == ModeKeys.TRAIN)
        return Dense(s["num_classes"], name="logits", dtype=self.policy)(x)

    def build_total_loss(self, outputs, features, labels, mode):
        logits = tf.cast(outputs, tf.float32)
        return tf.compat.v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)

    def build_eval_metric_ops(self, outputs, features, labels):
        def metrics(labels, classes):
            return {"accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=classes)}

        return metrics, [labels, tf.argmax(outputs, axis=1)]

    def build_predictions(self, outputs):
        logits = tf.cast(outputs, tf.float32)
        return {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}


def model_fn(features, labels, mode, params):
    params["depth"] = len(params["model"]["hidden_sizes"])
    params["model"]["mixed_precision"] = bool(params["model"]["mixed_precision"])
    return spec_of(MlpModel(params), features, labels, mode)
