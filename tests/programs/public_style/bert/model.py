"""Masked words are guessed from the vectors at their positions, the next sentence from the first vector."""

import tensorflow as tf
from common.base_model import spec_of
from common.encoder import EncoderModel
from common.layers import DenseLayer, LayerNormalizationLayer, SharedOutputLayer

v1 = tf.compat.v1


class BertModel(EncoderModel):
    def build_model(self, features, mode):
        s = self.settings
        x = self.encode(features, mode)
        words = self.at_positions(x, features["masked_lm_positions"])
        words = DenseLayer(s["hidden_size"], s["nonlinearity"], **self.layer_arguments("mlm_dense"))(words)
        words = LayerNormalizationLayer(s["layer_norm_epsilon"], **self.layer_arguments("mlm_norm"))(words)
        words = SharedOutputLayer(**self.layer_arguments("mlm_logits"))(words, self.embedding.table)
        sentences = DenseLayer(2, **self.layer_arguments("nsp_logits"))(self.pooled(x))
        return words, sentences

    @staticmethod
    def at_positions(x, positions):
        """[batch, masked, width]: rows of one table of all tokens of the batch."""
        batch, length, width = x.shape.as_list()
        offsets = tf.reshape(tf.range(batch, dtype=tf.int32) * length, [-1, 1])
        rows = tf.gather(tf.reshape(x, [batch * length, width]), tf.reshape(positions + offsets, [-1]))
        return tf.reshape(rows, [batch, -1, width])

    def build_total_loss(self, outputs, features, labels, mode):
        words, sentences = (tf.cast(logits, tf.float32) for logits in outputs)
        # Positions that are not used have the label -1, and no loss.
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=words)
        losses *= features["masked_lm_weights"]
        batch = tf.cast(tf.shape(losses)[0], tf.float32)
        mlm_loss = tf.reduce_sum(losses) / batch * self.settings["mlm_loss_weight"]
        nsp_loss = v1.losses.sparse_softmax_cross_entropy(features["next_sentence_labels"], sentences)
        v1.summary.scalar("train/mlm_loss", mlm_loss)
        v1.summary.scalar("train/nsp_loss", nsp_loss)
        return mlm_loss + nsp_loss

    def build_eval_metric_ops(self, outputs, features, labels):
        def metrics(labels, words, weights, next_labels, next_guesses):
            return {
                "eval/accuracy_mlm": v1.metrics.accuracy(labels, words, weights),
                "eval/accuracy_nsp": v1.metrics.accuracy(next_labels, next_guesses),
            }

        words, sentences = (tf.argmax(tf.cast(x, tf.float32), -1, tf.int32) for x in outputs)
        tensors = [labels, words, features["masked_lm_weights"], features["next_sentence_labels"], sentences]
        return metrics, tensors

    def build_predictions(self, outputs):
        words, sentences = (tf.argmax(tf.cast(x, tf.float32), -1, tf.int32) for x in outputs)
        return {"words": words, "next_sentence": sentences}


def model_fn(features, labels, mode, params):
    params["model"]["mlm_loss_weight"] = 1.0 / params["train_input"]["max_predictions_per_seq"]
    return spec_of(BertModel(params), features, labels, mode)
