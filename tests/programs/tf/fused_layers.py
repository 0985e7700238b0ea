"""Layers in all the forms that `fuse` recognizes, and training steps of them before and after the passes."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import keras
import numpy as np
import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.importers.tensorflow import import_step
from cgc.lowering.interpret import step_function
from cgc.passes.pipeline import run_pipeline
from cs_toolkit.step import TensorSpec

v1 = tf.compat.v1
Form = Callable[[Any], Any]
Input = tuple[tuple[int, ...], Any]


def variable(name: str, shape: Sequence[int]) -> Any:
    return v1.get_variable(name, shape, initializer=v1.ones_initializer())


def moments(x: Any) -> tuple[Any, Any]:
    return tf.nn.moments(x, [-1], keepdims=True)


def own_moments(x: Any) -> tuple[Any, Any]:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    return mean, tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)


def scale(x: Any) -> Any:
    return variable("gamma", [x.shape[-1]])


def offset(x: Any) -> Any:
    return variable("beta", [x.shape[-1]])


def batch_normalization(x: Any) -> Any:
    return tf.nn.batch_normalization(x, *moments(x), offset(x), scale(x), 1e-5)


def divided(x: Any, moments_of: Callable[[Any], tuple[Any, Any]] = own_moments) -> Any:
    mean, variance = moments_of(x)
    return (x - mean) / tf.sqrt(variance + 1e-5) * scale(x) + offset(x)


def rooted(x: Any, moments_of: Callable[[Any], tuple[Any, Any]] = own_moments) -> Any:
    mean, variance = moments_of(x)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * scale(x) + offset(x)


def scaled(x: Any) -> Any:
    mean, variance = moments(x)
    return (x - mean) * (tf.math.rsqrt(variance + 1e-5) * scale(x)) + offset(x)


def centered_once(x: Any) -> Any:
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    return scale(x) * (centered / tf.sqrt(variance + 1e-5)) + offset(x)


def pow_two(x: Any) -> Any:
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.pow(centered, 2), -1, keepdims=True)
    return scale(x) * (centered / tf.sqrt(variance + 1e-5)) + offset(x)


def scaled_first(x: Any) -> Any:
    mean, variance = own_moments(x)
    return scale(x) * (x - mean) / tf.sqrt(variance + 1e-5) + offset(x)


def scaled_first_by_root(x: Any) -> Any:
    mean, variance = own_moments(x)
    return scale(x) * (x - mean) * tf.math.rsqrt(variance + 1e-5) + offset(x)


def inverse_root(x: Any) -> Any:
    mean, variance = own_moments(x)
    return (x - mean) * (1 / tf.sqrt(variance + 1e-5)) * scale(x) + offset(x)


def root_by_pow(x: Any) -> Any:
    mean, variance = own_moments(x)
    return scale(x) * ((x - mean) * tf.pow(variance + 1e-5, -0.5)) + offset(x)


def sums_by_size(x: Any) -> Any:
    size = tf.cast(x.shape[-1], tf.float32)
    centered = x - tf.reduce_sum(x, -1, keepdims=True) / size
    variance = tf.reduce_sum(centered * centered, -1, keepdims=True) / size
    return centered * tf.math.rsqrt(variance + 1e-5) * scale(x) + offset(x)


def keras_layer(x: Any) -> Any:
    return keras.layers.LayerNormalization(epsilon=1e-5)(x)


LAYER_NORMS: dict[str, Form] = {
    "batch_normalization": batch_normalization,
    "keras": keras_layer,
    "divided": divided,
    "divided_moments": lambda x: divided(x, moments),
    "rooted": rooted,
    "rooted_moments": lambda x: rooted(x, moments),
    "scaled": scaled,
    "centered_once": centered_once,
    "pow_two": pow_two,
    "scaled_first": scaled_first,
    "scaled_first_by_root": scaled_first_by_root,
    "inverse_root": inverse_root,
    "root_by_pow": root_by_pow,
    "sums_by_size": sums_by_size,
}


def tanh_part(x: Any) -> Any:
    return 1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3)))


GELUS: dict[str, Form] = {
    "tf": tf.nn.gelu,
    "tf_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "bert": lambda x: x * (0.5 * (1.0 + tf.math.erf(x / tf.sqrt(2.0)))),
    "early": lambda x: x * 0.5 * (1.0 + tf.math.erf(x / tf.sqrt(2.0))),
    "last": lambda x: x * (1.0 + tf.math.erf(x * math.sqrt(0.5))) * 0.5,
    "gpt2": lambda x: 0.5 * x * tanh_part(x),
    "bert_tanh": lambda x: x * (0.5 * tanh_part(x)),
    "last_tanh": lambda x: x * tanh_part(x) * 0.5,
}


def attention(x: Any, *, bias: bool = False, is_scaled: bool = True, rate: float = 0.0) -> Any:
    """Attention of x `[batch, heads, length, size]` to itself."""
    size = x.shape[-1]
    query, key, value = (tf.matmul(x, tf.eye(size) * variable(name, [size])[:, None]) for name in "qkv")
    scores = tf.matmul(query, key, transpose_b=True)
    scores = scores * (1 / math.sqrt(size)) if is_scaled else scores
    if bias:
        visible = tf.linalg.band_part(tf.ones([x.shape[-2]] * 2), -1, 0)
        scores += ((1 - visible) * -1e4)[None, None]
    probabilities = tf.nn.softmax(scores)
    kept = tf.nn.dropout(probabilities, rate=rate, seed=3) if rate else probabilities
    return tf.matmul(kept, value)


def keras_attention(x: Any, *, causal: bool = False, rate: float = 0.0) -> Any:
    """The same of x `[batch, length, size]`, as Keras has it."""
    layer = keras.layers.MultiHeadAttention(2, 3, dropout=rate)
    return layer(x, x, use_causal_mask=causal, training=True)


ATTENTIONS: dict[str, Form] = {
    "plain": lambda x: attention(x, is_scaled=False),
    "scaled": attention,
    "bias": lambda x: attention(x, bias=True),
    "dropout": lambda x: attention(x, rate=0.25),
    "bias_dropout": lambda x: attention(x, bias=True, rate=0.25),
}


def one_hot_loss(logits: Any, labels: Any) -> Any:
    """As the published BERT computes it, with a weight for each row."""
    one_hot = tf.one_hot(labels, logits.shape[-1])
    weights = tf.nn.softmax(tf.reduce_mean(logits, -1))
    return tf.reduce_sum(weights * -tf.reduce_sum(tf.nn.log_softmax(logits) * one_hot, -1))


class BertAdam:
    """The published optimizer of BERT: Adam without correction, with decay of every weight."""

    def __init__(self, rate: float, decay: float) -> None:
        self._rate, self._decay = rate, decay

    def apply(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        return [update for grad, param in pairs for update in self._updates(grad, param)]

    def _updates(self, grad: Any, param: Any) -> list[Any]:
        name, zeros = param.op.name, v1.zeros_initializer()
        m, v = (
            v1.get_variable(f"{name}/{slot}", param.shape, initializer=zeros, trainable=False)
            for slot in ("adam_m", "adam_v")
        )
        next_m = 0.9 * m + (1.0 - 0.9) * grad
        next_v = 0.999 * v + (1.0 - 0.999) * tf.square(grad)
        step = next_m / (tf.sqrt(next_v) + 1e-6)
        if self._decay:
            step += self._decay * param
        return [param.assign(param - self._rate * step), m.assign(next_m), v.assign(next_v)]


def squares_of(forms: dict[str, Form]) -> Callable[..., Any]:
    """Return a loss of all forms, each with its own weight and residual connection."""

    def loss(x: Any, *_: Any) -> Any:
        total = 0.0
        for name, form in forms.items():
            with v1.variable_scope(name):
                hidden = x * variable("in", [x.shape[-1]])
                total += tf.reduce_mean(tf.square(form(hidden) * variable("out", [x.shape[-1]]) + hidden))
        return total

    return loss


def training_step(
    loss_of: Callable[..., Any],
    inputs: Sequence[Input],
    optimizer: Any = None,
    clip: float | None = None,
    mode: str = "train",
    more_updates: Sequence[Any] = (),
) -> ModuleOp:
    """One step of a program on placeholders, imported; `more_updates` may be filled by `loss_of`."""
    keras.utils.clear_session(free_memory=False)
    with tf.Graph().as_default() as graph:
        step = v1.train.get_or_create_global_step()
        placeholders = [v1.placeholder(dtype, shape) for shape, dtype in inputs]
        loss = loss_of(*placeholders)
        updates: list[Any] = []
        if mode == "train":
            chosen = v1.train.GradientDescentOptimizer(0.1) if optimizer is None else optimizer
            variables = v1.trainable_variables()
            gradients = tf.gradients(loss, variables)
            if clip is not None:
                gradients, _ = tf.clip_by_global_norm(gradients, clip)
            pairs = list(zip(gradients, variables, strict=True))
            updates = (
                chosen.apply(pairs) if isinstance(chosen, BertAdam) else [chosen.apply_gradients(pairs, step)]
            )
        return import_step(
            graph,
            inputs=placeholders,
            outputs={"loss": loss},
            updates=[*updates, *more_updates],
            mode=mode,
            seed=1,
            global_step=step,
        ).module


def before_and_after(module: ModuleOp) -> tuple[ModuleOp, ModuleOp]:
    """The module without fusion and with it."""
    plain = module.clone()
    run_pipeline(plain, "canonicalize,constant-fold,canonicalize,cse,dce", verify=True)
    return plain, fused(module)


def fused(module: ModuleOp) -> ModuleOp:
    """A copy of the module that the passes have been through."""
    copy = module.clone()
    run_pipeline(copy, verify=True)
    return copy


def op_counts(module: ModuleOp) -> Counter[str]:
    return Counter(op.name.removeprefix("cirh.") for op in module.walk())


def random_values(specs: Sequence[TensorSpec], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Values that a program could have.

    Second moments are positive, powers of betas between 0 and 1, matrices small, vectors (scales) around 1.
    """

    def value(spec: TensorSpec) -> np.ndarray:
        if spec.dtype.startswith("int"):
            return rng.integers(0, 2, spec.shape).astype(np.int32)
        if "power" in spec.name:
            return np.asarray(rng.uniform(0.3, 0.9), np.float32)
        drawn = rng.standard_normal(spec.shape).astype(np.float32)
        if spec.name.endswith(("_1", "_v", "velocity")):
            return np.float32(0.1) + np.square(drawn)
        if not spec.name.startswith("state.model"):
            return drawn
        return np.float32(0.3) * drawn + (len(spec.shape) == 1)

    return tuple(map(value, specs))


def nudged(values: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The same with the last bit of every float moved, up and down by turns."""

    def moved(value: np.ndarray) -> np.ndarray:
        if value.dtype != np.float32:
            return value
        signs = (1 - 2 * (np.arange(value.size) % 2)).reshape(value.shape)
        return (value * (1 + signs * 2.0**-23)).astype(np.float32)

    return tuple(map(moved, values))


def assert_same_numbers(plain: ModuleOp, fused: ModuleOp, seed: int = 0, limit: float = 5e-6) -> None:
    """Every result of a step, of both modules, on random state and inputs: equal but for rounding.

    That is `limit` of the largest element, and a few times what the last bit of the inputs changes: a row of
    nearly equal elements, divided by its deviation, is made of rounding errors.
    """
    interface, rng = step_interface(plain), np.random.default_rng(seed)
    state, inputs = random_values(interface.state, rng), random_values(interface.inputs, rng)
    steps = [jax.jit(step_function(module)) for module in (plain, fused)]
    results = [jax.tree.leaves(step(state, inputs)) for step in steps]
    nearby = jax.tree.leaves(steps[0](state, nudged(inputs)))
    names = [spec.name for spec in (*interface.state, *interface.outputs)]
    for name, *values in zip(names, *results, nearby, strict=True):
        expected, got, near = (np.asarray(value, np.float64) for value in values)
        assert np.isfinite(expected).all(), name
        largest = np.abs(expected).max(initial=1e-3)
        allowed = limit * largest + 4 * np.abs(near - expected).max(initial=0)
        np.testing.assert_allclose(got, expected, rtol=0, atol=allowed, err_msg=name)
