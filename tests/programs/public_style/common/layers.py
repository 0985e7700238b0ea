"""Layers around those of Keras, and some written by hand."""

import math

import tensorflow as tf

from common.base_layer import BaseLayer


def gelu(x):
    """By tanh, in the type of x (Hendrycks and Gimpel 2016)."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3))
    return x * (0.5 * (1.0 + tf.tanh(inner)))


ACTIVATIONS = {"gelu": gelu, "relu": tf.nn.relu, "tanh": tf.nn.tanh, "sigmoid": tf.nn.sigmoid}


class ActivationLayer(BaseLayer):
    def __init__(self, activation, **kwargs):
        super().__init__(**kwargs)
        self.function = ACTIVATIONS[activation] if activation else tf.identity

    def call(self, inputs):
        return self.leave(self.function(self.enter(inputs)))


class DenseLayer(BaseLayer):
    """A product in the compute type; the bias is added in the type of the variables."""

    def __init__(self, units, activation=None, use_bias=True, stddev=None, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.use_bias = use_bias
        self.initializer = (
            tf.compat.v1.glorot_uniform_initializer()
            if stddev is None
            else tf.compat.v1.truncated_normal_initializer(stddev=stddev)
        )
        self.activation = ActivationLayer(activation, dtype=self.dtype_policy) if activation else None

    def build(self, input_shape):
        width = int(input_shape[-1])
        self.kernel = self.add_weight(
            "kernel", [width, self.units], self.variable_dtype, self.initializer, experimental_autocast=False
        )
        if self.use_bias:
            self.bias = self.add_weight(
                "bias", [self.units], self.variable_dtype, "zeros", experimental_autocast=False
            )
        super().build(input_shape)

    def call(self, inputs):
        width = inputs.shape[-1]
        rows = tf.reshape(self.enter(inputs), [-1, width])
        output = tf.matmul(self.half(rows), self.half(self.kernel))
        if self.use_bias:
            output = self.half(tf.cast(output, self.variable_dtype) + self.bias)
        output = tf.reshape(output, [-1, *inputs.shape[1:-1], self.units])
        return self.leave(self.activation(output) if self.activation else output)


class EmbeddingLayer(BaseLayer):
    def __init__(self, input_dim, output_dim, stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.layer = tf.keras.layers.Embedding(
            input_dim,
            output_dim,
            embeddings_initializer=tf.compat.v1.truncated_normal_initializer(stddev=stddev),
            dtype=self.dtype_policy,
            name="embedding",
        )

    @property
    def table(self):
        return self.layer.embeddings

    def call(self, inputs):
        return self.leave(self.layer(self.enter(inputs)))


class PositionEmbeddingLayer(BaseLayer):
    """Learned vectors, or fixed waves (Vaswani et al. 2017), added to the embeddings of tokens."""

    def __init__(self, max_position_embeddings, kind="learned", stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.positions = max_position_embeddings
        self.kind = kind
        self.stddev = stddev

    def build(self, input_shape):
        width = int(input_shape[-1])
        if self.kind == "learned":
            initializer = tf.compat.v1.truncated_normal_initializer(stddev=self.stddev)
            self.table = self.add_weight(
                "table",
                [self.positions, width],
                self.variable_dtype,
                initializer,
                experimental_autocast=False,
            )
        else:
            self.table = waves(self.positions, width)
        super().build(input_shape)

    def call(self, inputs):
        length = inputs.shape[1]
        table = tf.slice(self.table, [0, 0], [length, -1])
        return self.leave(self.enter(inputs) + self.half(tf.expand_dims(table, 0)))


def waves(length, width):
    position = tf.cast(tf.range(length), tf.float32)
    step = math.log(10000.0) / max(width // 2 - 1, 1)
    rates = tf.exp(tf.cast(tf.range(width // 2), tf.float32) * -step)
    angles = tf.expand_dims(position, 1) * tf.expand_dims(rates, 0)
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=1)


class LayerNormalizationLayer(BaseLayer):
    def __init__(self, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.layer = tf.keras.layers.LayerNormalization(
            axis=-1, epsilon=epsilon, dtype=self.dtype_policy, name="norm"
        )

    def call(self, inputs):
        return self.leave(self.layer(self.enter(inputs)))


class RMSNormalizationLayer(BaseLayer):
    """Without mean and offset (T5: Raffel et al. 2020), in the type of the variables."""

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        self.scale = self.add_weight(
            "scale", [int(input_shape[-1])], self.variable_dtype, "ones", experimental_autocast=False
        )
        super().build(input_shape)

    def call(self, inputs):
        x = tf.cast(inputs, self.variable_dtype)
        square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
        return self.half(x * tf.math.rsqrt(square + self.epsilon) * self.scale)


class DropoutLayer(BaseLayer):
    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.layer = tf.keras.layers.Dropout(rate, seed=seed, dtype=self.dtype_policy)

    def call(self, inputs, training=False):
        return self.layer(inputs, training=training)


class FeedForwardLayer(BaseLayer):
    """Two dense layers with an activation and a dropout between them."""

    def __init__(self, filter_size, hidden_size, activation, dropout_rate=0.0, use_bias=True, **kwargs):
        casting = kwargs.get("boundary_casting", False)
        super().__init__(**kwargs)
        common = {"use_bias": use_bias, "boundary_casting": casting, "dtype": self.dtype_policy}
        self.wide = DenseLayer(filter_size, activation, name="wide", **common)
        self.dropout = DropoutLayer(dropout_rate, dtype=self.dtype_policy)
        self.narrow = DenseLayer(hidden_size, name="narrow", **common)

    def call(self, inputs, training=False):
        return self.narrow(self.dropout(self.wide(inputs), training=training))


class SharedOutputLayer(BaseLayer):
    """Logits by the table of an embedding layer."""

    def call(self, inputs, table):
        width = inputs.shape[-1]
        rows = tf.reshape(inputs, [-1, width])
        logits = tf.matmul(rows, self.half(table), transpose_b=True)
        return tf.reshape(logits, [-1, *inputs.shape[1:-1], table.shape[0]])


class CrossEntropyLayer(BaseLayer):
    """The mean over a batch of the weighted losses of the positions of a sequence, in float32."""

    def __init__(self, scale=None, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, logits, labels, weights=None):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=tf.cast(logits, tf.float32)
        )
        if weights is not None:
            losses = losses * tf.cast(weights, losses.dtype)
        total = tf.reduce_sum(losses)
        batch = tf.cast(tf.shape(losses)[0], losses.dtype)
        return total / batch * self.scale if self.scale else total / batch
