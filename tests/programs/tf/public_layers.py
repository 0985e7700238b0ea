"""Layers, networks and a trainer in the style of public programs for the original stack.

Keras 2 layers with their own `mixed_float16` policy and with wrappers that cast; a `tf.compat.v1` optimizer
with slots; and hand-written loss scaling, clipping and check for finite gradients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

v1 = tf.compat.v1


def tanh_part(x: Any) -> Any:
    """Both constants are rounded to the type of x."""
    return tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3)))


ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: tf.identity,
    "relu": tf.nn.relu,
    "gelu": lambda x: x * (0.5 * (1.0 + tanh_part(x))),
    "gelu_early": lambda x: 0.5 * x * (1.0 + tanh_part(x)),
    "gelu_last": lambda x: x * (1.0 + tanh_part(x)) * 0.5,
    "gelu_erf": lambda x: 0.5 * x * (1.0 + tf.math.erf(x / tf.cast(tf.sqrt(2.0), x.dtype))),
}
"""GELU as the published BERT and GPT-2 write it, and in other orders."""


class BaseLayer(tf_keras.layers.Layer):  # type: ignore[misc]
    """A layer in 16 bits whose weights have 32."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name, dtype=tf_keras.mixed_precision.Policy("mixed_float16"))


class DenseLayer(BaseLayer):
    """A product in float16; the bias is added in float32 and the sum rounded again."""

    def __init__(self, units: int, activation: str | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.units, self.activation = units, activation

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(
            "kernel", [shape[-1], self.units], initializer=tf_keras.initializers.TruncatedNormal(0.0, 0.02)
        )
        self.bias = self.add_weight("bias", [self.units], initializer="zeros", experimental_autocast=False)
        super().build(shape)

    def call(self, inputs: Any) -> Any:
        *leading, size = inputs.shape
        rows = tf.reshape(inputs, [-1, size])
        product = tf.matmul(rows, tf.cast(self.kernel, inputs.dtype))
        sums = tf.cast(tf.nn.bias_add(tf.cast(product, tf.float32), self.bias), inputs.dtype)
        sums = tf.reshape(sums, [*leading, self.units])
        return ACTIVATIONS[self.activation](sums)


class KerasDenseLayer(BaseLayer):
    """Around the layer of Keras, which adds the bias in float16; the activation follows."""

    def __init__(self, units: int, activation: str | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.layer = tf_keras.layers.Dense(units, dtype=self.dtype_policy, name="dense")
        self.activation = activation

    def call(self, inputs: Any) -> Any:
        return ACTIVATIONS[self.activation](self.layer(inputs))


class LayerNormalization(BaseLayer):
    """Written by hand in float32 between casts."""

    def __init__(self, epsilon: float = 1e-5, name: str | None = None) -> None:
        super().__init__(name)
        self.epsilon = epsilon

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight("gamma", [shape[-1]], initializer="ones", experimental_autocast=False)
        self.beta = self.add_weight("beta", [shape[-1]], initializer="zeros", experimental_autocast=False)
        super().build(shape)

    def call(self, inputs: Any) -> Any:
        x = tf.cast(inputs, tf.float32)
        return tf.cast(self.normalize(x), inputs.dtype)

    def normalize(self, x: Any) -> Any:
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), axis=-1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + self.epsilon) * self.gamma + self.beta


class MomentsLayerNormalization(LayerNormalization):
    """From `tf.nn.moments` and `tf.nn.batch_normalization`."""

    def normalize(self, x: Any) -> Any:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, self.epsilon)


class ProductLayerNormalization(LayerNormalization):
    """Squares written as products: their gradient is the sum of two equal terms."""

    def normalize(self, x: Any) -> Any:
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(centered * centered, axis=-1, keepdims=True)
        return centered * tf.math.rsqrt(variance + self.epsilon) * self.gamma + self.beta


class PowerLayerNormalization(LayerNormalization):
    """With powers; the scale comes before the quotient."""

    def normalize(self, x: Any) -> Any:
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.pow(centered, 2), axis=-1, keepdims=True)
        return self.gamma * centered / tf.sqrt(variance + self.epsilon) + self.beta


class InverseLayerNormalization(LayerNormalization):
    """Times the inverse of the deviation."""

    def normalize(self, x: Any) -> Any:
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(centered**2, axis=-1, keepdims=True)
        return centered * (1.0 / tf.sqrt(variance + self.epsilon)) * self.gamma + self.beta


class HalfLayerNormalization(LayerNormalization):
    """Without casts, all in float16."""

    def call(self, inputs: Any) -> Any:
        mean = tf.reduce_mean(inputs, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(inputs - mean), axis=-1, keepdims=True)
        deviation = tf.sqrt(variance + tf.cast(self.epsilon, inputs.dtype))
        return (inputs - mean) / deviation * self.rounded(self.gamma) + self.rounded(self.beta)

    def rounded(self, vector: Any) -> Any:
        return tf.cast(vector, tf.float16)


class HalfMomentsLayerNormalization(HalfLayerNormalization):
    """`tf.nn.moments` of float16 casts by itself; mean and variance come back in float16."""

    def call(self, inputs: Any) -> Any:
        mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
        vectors = self.rounded(self.beta), self.rounded(self.gamma)
        return tf.nn.batch_normalization(inputs, mean, variance, *vectors, self.epsilon)


class KerasLayerNormalization(BaseLayer):
    """Around the layer of Keras 2, which is made of FusedBatchNorm for an epsilon from 1.001e-5 on."""

    def __init__(self, epsilon: float = 2e-5, name: str | None = None) -> None:
        super().__init__(name)
        self.layer = tf_keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def call(self, inputs: Any) -> Any:
        return self.layer(inputs)


class Dropout(BaseLayer):
    def __init__(self, rate: float, name: str | None = None) -> None:
        super().__init__(name)
        self.rate = rate

    def call(self, inputs: Any) -> Any:
        return tf.nn.dropout(inputs, rate=self.rate) if self.rate else inputs


class Attention(BaseLayer):
    """Multi-head attention: `scale` says which of query and scores is scaled, and how."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        rate: float,
        scale: str = "query",
        dense: Any = DenseLayer,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.hidden, self.heads, self.rate, self.scale = hidden, heads, rate, scale
        self.query, self.key, self.value, self.output_layer = (
            dense(hidden, name=part) for part in ("query", "key", "value", "output")
        )
        self.dropout = Dropout(rate, name="dropout")

    def split(self, x: Any) -> Any:
        batch, length, _ = x.shape
        return tf.transpose(
            tf.reshape(x, [batch, length, self.heads, self.hidden // self.heads]), [0, 2, 1, 3]
        )

    def call(self, q: Any, v: Any, mask: Any = None) -> Any:
        depth = self.hidden // self.heads
        query, key, value = self.split(self.query(q)), self.split(self.key(v)), self.split(self.value(v))
        if self.scale == "query":
            query = tf.multiply(query, 1.0 / math.sqrt(float(depth)))
        scores = tf.matmul(query, key, transpose_b=True)
        if self.scale == "divide":
            scores = tf.divide(scores, tf.cast(tf.sqrt(float(depth)), scores.dtype))
        if mask is not None:
            scores += tf.cast(mask, scores.dtype)
        weights = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), scores.dtype)
        weights = self.dropout(weights)
        context = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
        batch, length, _ = q.shape
        return self.output_layer(tf.reshape(context, [batch, length, self.hidden]))


def padding_mask(visible: Any) -> Any:
    """[batch, 1, 1, length], -1e4 where nothing is to be seen."""
    return (1 - tf.cast(visible, tf.float16))[:, None, None, :] * -1e4


def causal_mask(length: int) -> Any:
    """[1, 1, length, length], -1e4 at later positions."""
    visible = tf.linalg.band_part(tf.ones([length, length], tf.float16), -1, 0)
    return (1 - visible)[None, None] * -1.0e4


class Block(BaseLayer):
    """A layer of an encoder or, with `cross`, of a decoder; normalizes first."""

    def __init__(self, sizes: dict[str, Any], cross: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        norm, dense = sizes.get("norm", LayerNormalization), sizes.get("dense", DenseLayer)
        hidden, heads, rate = sizes["hidden"], sizes["heads"], sizes["rate"]
        scale = sizes.get("scale", "query")
        self.norms = [norm(name=f"norm_{i}") for i in range(2 + cross)]
        self.attention = Attention(hidden, heads, sizes.get("attention_rate", 0.0), scale, dense, name="self")
        self.cross = (
            Attention(hidden, heads, sizes.get("attention_rate", 0.0), scale, dense, name="cross")
            if cross
            else None
        )
        self.inner = dense(sizes["filter"], sizes["activation"], name="inner")
        self.outer = dense(hidden, name="outer")
        self.dropouts = [Dropout(rate, name=f"dropout_{i}") for i in range(2 + cross)]

    def call(self, x: Any, mask: Any = None, memory: Any = None, memory_mask: Any = None) -> Any:
        y = self.norms[0](x)
        x = x + self.dropouts[0](self.attention(y, y, mask))
        if self.cross is not None:
            x = x + self.dropouts[2](self.cross(self.norms[2](x), memory, memory_mask))
        y = self.norms[1](x)
        return x + self.dropouts[1](self.outer(self.inner(y)))


class Embedding(BaseLayer):
    """A table in float32, rounded as a whole before the lookup."""

    def __init__(self, count: int, size: int, name: str | None = None) -> None:
        super().__init__(name)
        self.count, self.size = count, size

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(
            "table",
            [self.count, self.size],
            initializer=tf_keras.initializers.RandomNormal(0.0, 0.02),
            experimental_autocast=False,
        )
        super().build(shape)

    def call(self, ids: Any) -> Any:
        return tf.nn.embedding_lookup(tf.cast(self.table, tf.float16), ids)


def gpt2_logits(ids: Any, sizes: dict[str, Any]) -> Any:
    length = ids.shape[1]
    tokens = Embedding(sizes["vocabulary"], sizes["hidden"], name="tokens")
    positions = Embedding(length, sizes["hidden"], name="positions")
    x = tokens(ids) + positions(tf.range(length, dtype=tf.int32))[None]
    x = Dropout(sizes["rate"], name="dropout")(x)
    mask = causal_mask(length)
    for index in range(sizes["layers"]):
        x = Block(sizes, name=f"layer_{index}")(x, mask)
    x = sizes.get("norm", LayerNormalization)(name="norm")(x)
    rows = tf.reshape(x, [-1, sizes["hidden"]])
    return tf.cast(tf.matmul(rows, tf.cast(tokens.table, tf.float16), transpose_b=True), tf.float32)


def sinusoids(length: int, size: int) -> Any:
    places, parts = np.arange(length)[:, None], np.arange(size // 2)[None]
    angles = places / np.power(10000.0, 2 * parts / size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float16)


def transformer_logits(source: Any, source_mask: Any, target: Any, sizes: dict[str, Any]) -> Any:
    hidden = sizes["hidden"]
    encoder = Embedding(sizes["vocabulary"], hidden, name="source_tokens")
    decoder = Embedding(sizes["vocabulary"], hidden, name="target_tokens")
    norm = sizes.get("norm", LayerNormalization)
    x = encoder(source) * math.sqrt(hidden) + sinusoids(source.shape[1], hidden)[None]
    x = Dropout(sizes["rate"], name="source_dropout")(x)
    bias = padding_mask(source_mask)
    for index in range(sizes["layers"]):
        x = Block(sizes, name=f"encoder_{index}")(x, bias)
    memory = norm(name="encoder_norm")(x)
    x = decoder(target) * math.sqrt(hidden) + sinusoids(target.shape[1], hidden)[None]
    x = Dropout(sizes["rate"], name="target_dropout")(x)
    causal = causal_mask(target.shape[1])
    for index in range(sizes["layers"]):
        x = Block(sizes, cross=True, name=f"decoder_{index}")(x, causal, memory, bias)
    x = norm(name="decoder_norm")(x)
    rows = tf.reshape(x, [-1, hidden])
    return tf.cast(tf.matmul(rows, tf.cast(decoder.table, tf.float16), transpose_b=True), tf.float32)


def token_loss(logits: Any, labels: Any, weights: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=logits)
    weights = tf.cast(tf.reshape(weights, [-1]), tf.float32)
    return tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-5)


class AdamWeightDecayOptimizer(v1.train.Optimizer):  # type: ignore[misc,name-defined]
    """The optimizer of BERT: no correction, decay in the update; assigns only where `finite`."""

    def __init__(self, rate: Any, finite: Any, decay: float = 0.01, epsilon: float = 1e-6) -> None:
        super().__init__(False, "AdamWeightDecayOptimizer")
        self.rate, self.finite, self.decay, self.epsilon = rate, finite, decay, epsilon

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: str | None = None) -> Any:
        updates = []
        for grad, param in pairs:
            grad = tf.convert_to_tensor(grad)
            short = re.match("^(.*):\\d+$", param.name)[1]
            m, v = (
                v1.get_variable(
                    f"{short}/{slot}",
                    param.shape,
                    tf.float32,
                    trainable=False,
                    initializer=v1.zeros_initializer(),
                )
                for slot in ("adam_m", "adam_v")
            )
            next_m = tf.multiply(0.9, m) + tf.multiply(1.0 - 0.9, grad)
            next_v = tf.multiply(0.999, v) + tf.multiply(1.0 - 0.999, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + self.epsilon)
            if self.decay and not re.search("norm|bias|gamma|beta", param.name):
                update += self.decay * param
            next_param = param - self.rate * update
            updates += [self.assigned(param, next_param), self.assigned(m, next_m), self.assigned(v, next_v)]
        if global_step is not None:
            updates.append(global_step.assign_add(1, read_value=False))
        return tf.group(*updates, name=name)

    def assigned(self, variable: Any, value: Any) -> Any:
        return variable.assign(tf.where(self.finite, value, variable), read_value=False)


def train_op(loss: Any, clip: str = "by_hand") -> tuple[Any, Any]:
    """(the op, the norm of the gradients): loss scale, clipping, update and next loss scale by hand."""
    step = v1.train.get_or_create_global_step()
    variables = v1.trainable_variables()
    scale = counter("loss_scale", 2.0**10)
    good = counter("good_steps", 0)
    grads = [tf.cast(grad, tf.float32) / scale for grad in tf.gradients(loss * scale, variables)]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(grad)) for grad in grads])
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(grad)) for grad in grads]))
    if clip == "by_hand":
        grads = [grad * (1.0 / tf.maximum(norm, 1.0)) for grad in grads]
    else:
        grads, norm = tf.clip_by_global_norm(grads, 1.0)
    rate = v1.train.polynomial_decay(2.8e-4, step, 1000, 0.0)
    optimizer = AdamWeightDecayOptimizer(rate, finite)
    update = optimizer.apply_gradients(zip(grads, variables, strict=True), step)
    grown = good + 1 >= 2000
    new_scale = tf.where(finite, tf.where(grown, scale * 2.0, scale), tf.maximum(scale / 2.0, 1.0))
    new_good = tf.where(finite, tf.where(grown, 0, good + 1), 0)
    return tf.group(update, scale.assign(new_scale), good.assign(new_good)), norm


def counter(name: str, value: float) -> Any:
    initial = tf.constant(value)
    return v1.get_variable(name, initializer=initial, trainable=False)
