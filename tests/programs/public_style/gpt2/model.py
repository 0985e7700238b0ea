"""GPT-2 (Radford et al. 2019): blocks whose norms come first, one table for input and output."""

import tensorflow as tf
from common.attention import BlockLayer, causal_mask, padding_mask
from common.base_model import BaseModel, ModeKeys, spec_of
from common.layers import (
    CrossEntropyLayer,
    DenseLayer,
    DropoutLayer,
    EmbeddingLayer,
    LayerNormalizationLayer,
    PositionEmbeddingLayer,
    SharedOutputLayer,
)


class Gpt2Model(BaseModel):
    def build_model(self, features, mode):
        s = self.settings
        training = mode == ModeKeys.TRAIN
        embedding = EmbeddingLayer(
            s["vocab_size"], s["hidden_size"], **self.layer_arguments("input_embedding")
        )
        positions = PositionEmbeddingLayer(
            s["max_position_embeddings"], **self.layer_arguments("position_embedding")
        )
        dropout = DropoutLayer(s["embedding_dropout_rate"], **self.layer_arguments("embedding_dropout"))
        x = dropout(positions(embedding(features["input_ids"])), training=training)
        mask = causal_mask(x.shape[1], self.policy.compute_dtype)
        if s.get("use_padding_mask"):
            mask += padding_mask(features["attention_mask"], self.policy.compute_dtype)
        for number in range(s["num_hidden_layers"]):
            x = BlockLayer(s, **self.layer_arguments(f"block_{number}"))(x, mask=mask, training=training)
        x = LayerNormalizationLayer(s["layer_norm_epsilon"], **self.layer_arguments("last_norm"))(x)
        if s["share_embedding_weights"]:
            return SharedOutputLayer(**self.layer_arguments("logits"))(x, embedding.table)
        return DenseLayer(s["vocab_size"], use_bias=False, **self.layer_arguments("logits"))(x)

    def build_total_loss(self, outputs, features, labels, mode):
        mask = tf.cast(features["attention_mask"], tf.float32)
        scale = self.settings.get("loss_weight")
        loss = CrossEntropyLayer(scale, **self.layer_arguments("cross_entropy"))(
            outputs, labels, weights=mask
        )
        tf.compat.v1.summary.scalar("train/cost", loss)
        return loss

    def build_eval_metric_ops(self, outputs, features, labels):
        def metrics(labels, guesses, weights):
            accuracy = tf.compat.v1.metrics.accuracy(labels=labels, predictions=guesses, weights=weights)
            return {"accuracy": accuracy}

        return metrics, [labels, self.guesses(outputs), features["attention_mask"]]

    def build_predictions(self, outputs):
        return {"next_tokens": self.guesses(outputs)}

    @staticmethod
    def guesses(logits):
        return tf.argmax(tf.cast(logits, tf.float32), axis=-1, output_type=tf.int32)


def model_fn(features, labels, mode, params):
    # Weights of the loss belong to the length of a sequence: the sum is of the order of one.
    params["model"]["loss_weight"] = 1.0 / params["train_input"]["max_sequence_length"]
    return spec_of(Gpt2Model(params), features, labels, mode)
