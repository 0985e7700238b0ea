"""The class of a text, from the vector of its first token."""

import tensorflow as tf
from common.base_model import ModeKeys, spec_of
from common.encoder import EncoderModel
from common.layers import DenseLayer, DropoutLayer

v1 = tf.compat.v1


class ClassifierModel(EncoderModel):
    def build_model(self, features, mode):
        s = self.settings
        pooled = self.pooled(self.encode(features, mode))
        dropout = DropoutLayer(s["dropout_rate"], **self.layer_arguments("classifier_dropout"))
        pooled = dropout(pooled, training=mode == ModeKeys.TRAIN)
        return DenseLayer(s["num_classes"], **self.layer_arguments("classifier"))(pooled)

    def build_total_loss(self, outputs, features, labels, mode):
        targets = tf.one_hot(labels, self.settings["num_classes"], dtype=tf.float32)
        log_probabilities = tf.nn.log_softmax(tf.cast(outputs, tf.float32))
        return -tf.reduce_mean(tf.reduce_sum(targets * log_probabilities, axis=-1))

    def build_eval_metric_ops(self, outputs, features, labels):
        def metrics(labels, classes):
            return {
                "eval/accuracy": v1.metrics.accuracy(labels, classes),
                "eval/recall_of_1": v1.metrics.recall(tf.equal(labels, 1), tf.equal(classes, 1)),
            }

        return metrics, [labels, tf.argmax(outputs, -1, tf.int32)]

    def build_predictions(self, outputs):
        logits = tf.cast(outputs, tf.float32)
        return {"class": tf.argmax(logits, -1, tf.int32), "probabilities": tf.nn.softmax(logits)}


def model_fn(features, labels, mode, params):
    params["mode"] = mode
    return spec_of(ClassifierModel(params), features, labels, mode)
