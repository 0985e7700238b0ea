"""A tag for every token; tokens behind the end of a text have the label -1."""

import tensorflow as tf
from common.base_model import ModeKeys, spec_of
from common.encoder import EncoderModel
from common.layers import DenseLayer, DropoutLayer

v1 = tf.compat.v1


class TaggerModel(EncoderModel):
    def build_model(self, features, mode):
        s = self.settings
        dropout = DropoutLayer(s["dropout_rate"], **self.layer_arguments("tagger_dropout"))
        x = dropout(self.encode(features, mode), training=mode == ModeKeys.TRAIN)
        return DenseLayer(s["num_tags"], **self.layer_arguments("tagger"))(x)

    def build_total_loss(self, outputs, features, labels, mode):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=tf.cast(outputs, tf.float32)
        )
        weights = tf.cast(features["input_mask"], tf.float32)
        return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)

    def build_eval_metric_ops(self, outputs, features, labels):
        num_tags = self.settings["num_tags"]

        def metrics(labels, tags, weights):
            return {
                "accuracy": v1.metrics.accuracy(labels, tags, weights),
                "mean_per_class": v1.metrics.mean_per_class_accuracy(labels, tags, num_tags, weights),
            }

        return metrics, [labels, self.tags(outputs), features["input_mask"]]

    def build_predictions(self, outputs):
        return {"tags": self.tags(outputs)}

    @staticmethod
    def tags(outputs):
        return tf.argmax(tf.cast(outputs, tf.float32), -1, tf.int32)


def model_fn(features, labels, mode, params):
    params["model"].update(is_training=mode == ModeKeys.TRAIN)
    return spec_of(TaggerModel(params), features, labels, mode)
