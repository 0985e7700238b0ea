"""An encoder-decoder with relative positions (Raffel et al. 2020) or fixed ones (Vaswani et al. 2017)."""

import tensorflow as tf
from common.attention import BlockLayer, causal_mask, padding_mask
from common.base_layer import BaseLayer
from common.base_model import BaseModel, ModeKeys, spec_of
from common.layers import (
    CrossEntropyLayer,
    DropoutLayer,
    EmbeddingLayer,
    LayerNormalizationLayer,
    PositionEmbeddingLayer,
    RMSNormalizationLayer,
    SharedOutputLayer,
)


class RelativePositionLayer(BaseLayer):
    """A number for every head and every bucket of distances, to add to the scores of attention."""

    def __init__(self, num_heads, num_buckets, max_distance, bidirectional, **kwargs):
        super().__init__(**kwargs)
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.bidirectional = bidirectional
        self.table = EmbeddingLayer(num_buckets, num_heads, stddev=0.1, dtype=self.dtype_policy, name="table")

    def call(self, inputs):
        """[1, heads, length, length] for inputs [batch, length, width]."""
        length = inputs.shape[1]
        bias = self.table(self.buckets(tf.range(length)))
        return tf.expand_dims(tf.transpose(bias, [2, 0, 1]), 0)

    def buckets(self, positions):
        """Near distances have buckets of their own; far ones share those of their logarithm."""
        distance = tf.expand_dims(positions, 1) - tf.expand_dims(positions, 0)
        buckets, first = self.num_buckets, 0
        if self.bidirectional:
            buckets //= 2
            first = tf.where(distance < 0, buckets, 0)
            distance = tf.abs(distance)
        else:
            distance = tf.maximum(distance, 0)
        near = buckets // 2
        # A quotient of integers is float64.
        logarithm = tf.math.log(tf.cast(tf.maximum(distance, 1) / near, tf.float32))
        share = logarithm / tf.math.log(self.max_distance / near)
        far = near + tf.cast(share * (buckets - near), tf.int32)
        return first + tf.where(distance < near, distance, tf.minimum(far, buckets - 1))


class EncoderDecoderModel(BaseModel):
    def build_model(self, features, mode):
        s = self.settings
        training = mode == ModeKeys.TRAIN
        embedding = EmbeddingLayer(
            s["vocab_size"], s["hidden_size"], 0.05, **self.layer_arguments("embedding")
        )
        compute_dtype = self.policy.compute_dtype
        source_mask = padding_mask(features["attention_mask"], compute_dtype)
        memory = self.stack("encoder", embedding(features["input_ids"]), source_mask, training)
        target = embedding(features["decoder_input_ids"])
        target_mask = causal_mask(target.shape[1], compute_dtype)
        x = self.stack("decoder", target, target_mask, training, memory, source_mask)
        x *= s["hidden_size"] ** -0.5
        return SharedOutputLayer(**self.layer_arguments("logits"))(x, embedding.table)

    def stack(self, name, x, mask, training, memory=None, memory_mask=None):
        s = self.settings
        bias = None
        if s["position_embedding_type"] == "relative":
            bias = RelativePositionLayer(
                s["num_heads"],
                s["num_buckets"],
                s["max_distance"],
                bidirectional=memory is None,
                **self.layer_arguments(f"{name}/positions"),
            )(x)
        else:
            kind = s["position_embedding_type"]
            x = PositionEmbeddingLayer(x.shape[1], kind, **self.layer_arguments(f"{name}/positions"))(x)
        x = self.dropout(x, training)
        for number in range(s[f"num_{name}_layers"]):
            block = BlockLayer(
                s,
                memory is not None,
                s["norm"],
                s["norm_first"],
                s["use_bias"],
                **self.layer_arguments(f"{name}/block_{number}"),
            )
            x = block(x, mask, memory, memory_mask, bias, training=training)
        if s["norm_first"]:
            kind = RMSNormalizationLayer if s["norm"] == "rms" else LayerNormalizationLayer
            x = kind(s["layer_norm_epsilon"], **self.layer_arguments(f"{name}/last_norm"))(x)
        return self.dropout(x, training)

    def dropout(self, x, training):
        layer = DropoutLayer(self.settings["dropout_rate"], dtype=self.policy, boundary_casting=self.casting)
        return layer(x, training=training)

    def build_total_loss(self, outputs, features, labels, mode):
        weights = features["decoder_attention_mask"]
        loss = CrossEntropyLayer(self.settings["loss_weight"], **self.layer_arguments("cross_entropy"))(
            outputs, labels, weights=weights
        )
        tf.compat.v1.summary.scalar("train/cost", loss)
        return loss

    def build_eval_metric_ops(self, outputs, features, labels):
        def metrics(labels, guesses, weights):
            accuracy = tf.compat.v1.metrics.accuracy(labels, guesses, weights)
            return {"accuracy": accuracy}

        return metrics, [labels, self.guesses(outputs), features["decoder_attention_mask"]]

    def build_predictions(self, outputs):
        return {"translation": self.guesses(outputs)}

    @staticmethod
    def guesses(logits):
        return tf.argmax(tf.cast(logits, tf.float32), axis=-1, output_type=tf.int32)


def model_fn(features, labels, mode, params):
    params["model"]["loss_weight"] = 1.0 / params["train_input"]["tgt_max_sequence_length"]
    params["model"]["head_size"] = params["model"].get("d_kv")
    return spec_of(EncoderDecoderModel(params), features, labels, mode)
