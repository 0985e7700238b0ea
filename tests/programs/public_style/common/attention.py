"""Attention, masks, and the blocks of transformers."""

import tensorflow as tf

from common.base_layer import BaseLayer
from common.layers import (
    DenseLayer,
    DropoutLayer,
    FeedForwardLayer,
    LayerNormalizationLayer,
    RMSNormalizationLayer,
)

MASKED = -1.0e4
"""Fits float16."""


def causal_mask(length, dtype):
    """[1, 1, length, length] to add to scores: nothing before and at a position, `MASKED` behind it."""
    visible = tf.linalg.band_part(tf.ones([length, length], tf.float32), -1, 0)
    return tf.cast((1.0 - visible) * MASKED, dtype)[tf.newaxis, tf.newaxis]


def padding_mask(mask, dtype):
    """[batch, 1, 1, length] to add to scores, of a mask [batch, length] with 1 for tokens."""
    return (1.0 - tf.cast(mask, dtype))[:, tf.newaxis, tf.newaxis, :] * MASKED


class AttentionLayer(BaseLayer):
    """Scores scaled before the product, softmax in the type of the variables."""

    def __init__(
        self,
        hidden_size,
        num_heads,
        head_size=None,
        dropout_rate=0.0,
        use_bias=True,
        scale_scores=True,
        **kwargs,
    ):
        casting = kwargs.get("boundary_casting", False)
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_size = head_size or hidden_size // num_heads
        self.scale_scores = scale_scores
        width = self.num_heads * self.head_size
        common = {"use_bias": use_bias, "boundary_casting": casting, "dtype": self.dtype_policy}
        self.q = DenseLayer(width, name="q_projection", **common)
        self.k = DenseLayer(width, name="k_projection", **common)
        self.v = DenseLayer(width, name="v_projection", **common)
        self.output_projection = DenseLayer(hidden_size, name="output_projection", **common)
        self.dropout = DropoutLayer(dropout_rate, dtype=self.dtype_policy)

    def call(self, query, memory=None, mask=None, position_bias=None, training=False):
        memory = query if memory is None else memory
        q, k, v = self.split(self.q(query)), self.split(self.k(memory)), self.split(self.v(memory))
        if self.scale_scores:
            q *= self.head_size**-0.5
        scores = tf.matmul(q, k, transpose_b=True)
        for addend in (mask, position_bias):
            if addend is not None:
                scores += self.half(addend)
        weights = self.half(tf.nn.softmax(tf.cast(scores, self.variable_dtype)))
        mixed = tf.matmul(self.dropout(weights, training=training), v)
        return self.output_projection(self.join(mixed))

    def split(self, x):
        x = tf.reshape(x, [-1, x.shape[1], self.num_heads, self.head_size])
        return tf.transpose(x, [0, 2, 1, 3])

    def join(self, x):
        x = tf.transpose(x, [0, 2, 1, 3])
        return tf.reshape(x, [-1, x.shape[1], self.num_heads * self.head_size])


class BlockLayer(BaseLayer):
    """Attention to itself, to a memory where there is one, and the feed-forward network.

    Args:
        settings: The group `model` of the parameters.
        cross: Whether there is a memory.
        norm: "layer" or "rms".
        norm_first: Whether norms stand before what they belong to (GPT-2), or behind the sum (BERT).
    """

    def __init__(self, settings, cross=False, norm="layer", norm_first=True, use_bias=True, **kwargs):
        casting = kwargs.get("boundary_casting", False)
        super().__init__(**kwargs)
        self.norm_first = norm_first
        common = {"boundary_casting": casting, "dtype": self.dtype_policy}
        hidden, rate = settings["hidden_size"], settings["dropout_rate"]

        def attention(name):
            return AttentionLayer(
                hidden,
                settings["num_heads"],
                settings.get("head_size"),
                settings["attention_dropout_rate"],
                use_bias,
                scale_scores=norm != "rms",
                name=name,
                **common,
            )

        def norm_layer(name):
            if norm == "rms":
                return RMSNormalizationLayer(settings["layer_norm_epsilon"], name=name, **common)
            return LayerNormalizationLayer(settings["layer_norm_epsilon"], name=name, **common)

        self.attention, self.attention_norm = attention("self_attention"), norm_layer("self_attention_norm")
        self.cross, self.cross_norm = None, None
        if cross:
            self.cross, self.cross_norm = attention("cross_attention"), norm_layer("cross_attention_norm")
        activation = settings["nonlinearity"]
        self.feed_forward = FeedForwardLayer(
            settings["filter_size"], hidden, activation, rate, use_bias, name="feed_forward", **common
        )
        self.feed_forward_norm = norm_layer("feed_forward_norm")
        self.dropout = DropoutLayer(rate, dtype=self.dtype_policy)

    def call(self, inputs, mask=None, memory=None, memory_mask=None, position_bias=None, training=False):
        def attend(x):
            return self.attention(x, mask=mask, position_bias=position_bias, training=training)

        def attend_to_memory(x):
            return self.cross(x, memory=memory, mask=memory_mask, training=training)

        def feed(x):
            return self.feed_forward(x, training=training)

        x = self.residual(inputs, attend, self.attention_norm, training)
        if self.cross is not None:
            x = self.residual(x, attend_to_memory, self.cross_norm, training)
        return self.residual(x, feed, self.feed_forward_norm, training)

    def residual(self, x, function, norm, training):
        if self.norm_first:
            return x + self.dropout(function(norm(x)), training=training)
        return norm(x + self.dropout(function(x), training=training))
