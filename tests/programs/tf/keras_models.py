"""Keras models with batches.

`python -m tests.programs.tf.keras_models NAME ...` trains them twice, by Keras and as imported and compiled
steps, and prints both results as JSON. TF_USE_LEGACY_KERAS=1 makes tf.keras tf_keras, else it is Keras 3.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
import tensorflow as tf

from cgc.cirh.interface import step_interface
from cgc.cirh.module import verify_module
from cgc.importers.tensorflow import import_keras_step, import_step
from cgc.lowering.interpret import step_function

keras = tf.keras
layers = keras.layers
IS_LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"

Batches = Sequence[Any]
Program = Callable[[], tuple[Any, Batches]]
PROGRAMS: dict[str, Program] = {}


def program(build: Program) -> Program:
    PROGRAMS[build.__name__] = build
    return build


def cross_entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def vectors(count: int = 5, classes: int = 3) -> Batches:
    rng = np.random.default_rng(5)
    plane = rng.normal(size=(6, classes))
    features = rng.normal(size=(count, 8, 6)).astype(np.float32)
    return [(x, (x @ plane).argmax(1).astype(np.int32)) for x in features]


def vector_records(batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of batches of `vectors`."""
    features, labels = zip(*vectors(batches), strict=True)
    return np.concatenate(features), np.concatenate(labels)


def images(count: int) -> Batches:
    rng = np.random.default_rng(6)
    pixels = rng.normal(size=(count, 8, 8, 8, 3)).astype(np.float32)
    return [(x, x.mean((1, 2)).argmax(1).astype(np.int32)) for x in pixels]


def tokens(count: int) -> Batches:
    rng = np.random.default_rng(7)
    return [(x, (x * 7 + 1) % 30) for x in rng.integers(0, 30, (count, 4, 8)).astype(np.int32)]


def mlp(optimizer: Any, **arguments: Any) -> Any:
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(16, activation="tanh"),
            layers.Dropout(0.0),
            layers.Dense(3),
        ]
    )
    model.compile(optimizer, loss=cross_entropy(), **arguments)
    return model


def normalized_mlp() -> Any:
    """Return a model with batch normalization; its first weights are the same in every call."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), loss=cross_entropy(), metrics=["accuracy"])
    return model


class ModelWithoutLoss(keras.Model):
    """A model whose train_step returns no loss."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"mean": tf.reduce_mean(data[0])}


def cnn() -> Any:
    x = layers.Input((8, 8, 3))
    h = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    h = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(h))
    h = layers.MaxPooling2D()(h)
    h = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(h)
    h = layers.Dropout(0.0)(layers.GlobalAveragePooling2D()(h))
    model = keras.Model(x, layers.Dense(3)(h))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    model.compile(optimizer, loss=cross_entropy(), metrics=["accuracy"])
    return model


def transformer() -> Any:
    x = layers.Input((8,), dtype="int32")
    h = layers.Embedding(30, 16)(x)
    attention = layers.MultiHeadAttention(2, 8, dropout=0.0, use_bias=False)
    h = layers.LayerNormalization()(h + attention(h, h, use_causal_mask=True))
    hidden = layers.Dense(32, activation="gelu")(h)
    h = layers.LayerNormalization()(h + layers.Dense(16)(hidden))
    model = keras.Model(x, layers.Dense(30)(h))
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=1.0)
    model.compile(optimizer, loss=cross_entropy(), metrics=["accuracy"])
    return model


@contextmanager
def mixed_float16() -> Iterator[None]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy("float32")


@program
def mlp_20_steps() -> tuple[Any, Batches]:
    return mlp(keras.optimizers.Adam(0.01), metrics=["accuracy"]), vectors(20)


@program
def cnn_20_steps() -> tuple[Any, Batches]:
    return cnn(), images(20)


@program
def transformer_20_steps() -> tuple[Any, Batches]:
    return transformer(), tokens(20)


@program
def mlp_mixed_float16() -> tuple[Any, Batches]:
    with mixed_float16():
        return mlp("adam"), vectors(20)


@program
def cnn_mixed_float16() -> tuple[Any, Batches]:
    with mixed_float16():
        return cnn(), images(20)


@program
def transformer_mixed_float16() -> tuple[Any, Batches]:
    with mixed_float16():
        return transformer(), tokens(20)


@program
def loss_scale_that_overflows() -> tuple[Any, Batches]:
    """The first steps are skipped and halve the scale; later ones double it."""
    with mixed_float16():
        optimizer = keras.mixed_precision.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=2.0**24, dynamic_growth_steps=3
        )
        return mlp(optimizer), vectors(12)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "rmsprop": lambda o: o.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda o: o.Adagrad(0.1),
    "adadelta": lambda o: o.Adadelta(1.0),
    "adamax": lambda o: o.Adamax(0.01),
    "nadam": lambda o: o.Nadam(0.01),
    "ftrl": lambda o: o.Ftrl(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.001),
    "lion": lambda o: o.Lion(0.001),
    "amsgrad": lambda o: o.Adam(0.01, amsgrad=True, clipnorm=0.5),
    "moving_average": lambda o: o.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    "schedule": lambda o: o.SGD(o.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])),
}
if IS_LEGACY:
    for name in ("SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Ftrl"):
        OPTIMIZERS[f"legacy_{name}"] = lambda o, name=name: getattr(o.legacy, name)(0.01)
    OPTIMIZERS["legacy_amsgrad"] = lambda o: o.legacy.Adam(0.01, amsgrad=True)
else:
    OPTIMIZERS["lamb"] = lambda o: o.Lamb(0.01)
    OPTIMIZERS["muon"] = lambda o: o.Muon(0.01)
    OPTIMIZERS["accumulation"] = lambda o: o.Adam(0.01, gradient_accumulation_steps=2)
PROGRAMS |= {
    f"optimizer_{name}": lambda make=make: (mlp(make(keras.optimizers)), vectors())
    for name, make in OPTIMIZERS.items()
}


SPARSE_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "rmsprop": lambda o: o.RMSprop(0.01),
    "rmsprop_momentum": lambda o: o.RMSprop(0.01, momentum=0.5, centered=True, clipnorm=0.1),
    "adagrad": lambda o: o.Adagrad(0.1),
    "adadelta": lambda o: o.Adadelta(1.0),
    "adafactor": lambda o: o.Adafactor(0.1),
}


def embedding(optimizer: Any) -> tuple[Any, Batches]:
    """Sparse gradients: a batch of 40 words of 20 names many of them several times, and a few not at all."""
    words = layers.Input((5,), dtype="int32")
    h = layers.GlobalAveragePooling1D()(layers.Embedding(20, 6)(words))
    model = keras.Model(words, layers.Dense(3)(h))
    model.compile(optimizer, loss=cross_entropy())
    rng = np.random.default_rng(1)
    return model, [
        (rng.integers(0, 20, (8, 5)).astype(np.int32), rng.integers(0, 3, 8).astype(np.int32))
        for _ in range(5)
    ]


PROGRAMS |= {
    f"embedding_{name}": lambda make=make: embedding(make(keras.optimizers))
    for name, make in SPARSE_OPTIMIZERS.items()
}


@program
def recurrent() -> tuple[Any, Batches]:
    x = layers.Input((6,))
    sequence = layers.Reshape((3, 2))(x)
    h = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(sequence)
    model = keras.Model(x, layers.Dense(3)(layers.GRU(4)(h)))
    model.compile("adam", loss=cross_entropy())
    return model, vectors()


@program
def two_inputs_weights_and_metrics() -> tuple[Any, Batches]:
    left, right = layers.Input((6,), name="left"), layers.Input((6,), name="right")
    shared = layers.Dense(5, activation="relu")
    h = layers.Concatenate()([shared(left), shared(right)])
    outputs = {"a": layers.Dense(3, name="a")(h), "b": layers.Dense(1, activation="sigmoid", name="b")(h)}
    model = keras.Model({"left": left, "right": right}, outputs)
    losses = {"a": cross_entropy(), "b": keras.losses.BinaryCrossentropy(label_smoothing=0.1)}
    metrics = {"a": ["accuracy"], "b": [keras.metrics.AUC(num_thresholds=7), keras.metrics.Precision()]}
    model.compile("adam", loss=losses, loss_weights={"a": 1.0, "b": 0.3}, metrics=metrics)
    return model, [
        (
            {"left": x, "right": x[::-1].copy()},
            {"a": y, "b": (y[:, None] > 0).astype(np.float32)},
            {"a": np.linspace(0, 1, 8, dtype=np.float32), "b": np.ones(8, np.float32)},
        )
        for x, y in vectors()
    ]


class Adversaries(keras.Model):
    """A train_step of one's own with two optimizers and a gradient penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([layers.Input((6,)), layers.Dense(6, activation="tanh")])
        self.critic = keras.Sequential(
            [layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(1)]
        )
        self.mean = keras.metrics.Mean("critic")

    def compile(self) -> None:
        super().compile()
        self.optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.5)]
        for optimizer, part in zip(self.optimizers, (self.generator, self.critic), strict=True):
            optimizer.build(part.trainable_variables)

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def train_step(self, data: Any) -> dict[str, Any]:
        real, _ = data
        with tf.GradientTape() as tape:
            fake = self.generator(real)
            with tf.GradientTape() as inner:
                inner.watch(fake)
                judged = self.critic(fake)
            slope = tf.norm(inner.gradient(judged, fake), axis=1)
            loss = (
                tf.reduce_mean(judged) - tf.reduce_mean(self.critic(real)) + tf.reduce_mean((slope - 1) ** 2)
            )
        self._update(1, self.critic, tape, loss)
        with tf.GradientTape() as tape:
            generated = -tf.reduce_mean(self.critic(self.generator(real)))
        self._update(0, self.generator, tape, generated)
        self.mean.update_state(loss)
        return {"loss": generated, "critic": self.mean.result()}

    def _update(self, index: int, part: Any, tape: Any, loss: Any) -> None:
        variables = part.trainable_variables
        gradients = tape.gradient(loss, variables)
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        self.optimizers[index].apply_gradients(pairs)


@program
def train_step_of_ones_own() -> tuple[Any, Batches]:
    model = Adversaries()
    model.compile()
    return model, vectors()


class Deep(keras.Model):
    """A loop and a branch inside of a tf.function, and a function for XLA."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(6), layers.Dense(3)
        self.first.build((8, 6))
        self.last.build((8, 6))

    @tf.function
    def turns(self, x: Any) -> Any:
        for _ in tf.range(4):
            x = tf.nn.relu(x) - 0.1 * x
        if tf.reduce_mean(x) > 0.2:
            x = x * 2.0
        return x

    @tf.function(jit_compile=True)
    def shaped(self, x: Any) -> Any:
        return tf.tanh(x) * tf.sin(x)

    def call(self, x: Any) -> Any:
        return self.last(self.shaped(self.turns(self.first(x))))


@program
def functions_in_call() -> tuple[Any, Batches]:
    model = Deep()
    model.compile("adam", loss=cross_entropy())
    model(np.zeros((8, 6), np.float32))
    return model, vectors()


class Counting(layers.Layer):
    """Has a variable, which it writes twice a step, and adds a loss."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        self.calls.assign(self.calls * 0.9)
        self.add_loss(0.01 * tf.reduce_sum(x**2))
        return x / (1.0 + self.calls)


@program
def layer_with_state() -> tuple[Any, Batches]:
    x = layers.Input((6,))
    model = keras.Model(x, layers.Dense(3)(Counting()(layers.Dense(6)(x))))
    model.compile("sgd", loss=cross_entropy())
    return model, vectors()


@program
def dropout() -> tuple[Any, Batches]:
    """Draws other numbers than TensorFlow; only the state of the generator can be compared."""
    x = layers.Input((6,))
    h = layers.GaussianNoise(0.1)(layers.Dropout(0.5)(layers.Dense(64)(x)))
    model = keras.Model(x, layers.Dense(3)(layers.AlphaDropout(0.1)(h)))
    model.compile("sgd", loss=cross_entropy())
    return model, vectors()


def compiled_steps(
    imported: Any, batches: Batches, *, reset_metrics: bool
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The outputs of every step and the state after the last, from the imported step."""
    verify_module(imported.module)
    interface = step_interface(imported.module)
    step = jax.jit(step_function(imported.module))
    state = imported.initial_state()
    new = {name: value for name, value in state.items() if name.startswith("state.metric.")}
    outputs = []
    for batch in batches:
        state |= new if reset_metrics else {}
        values, results = step(
            tuple(state[spec.name] for spec in interface.state), tuple(tf.nest.flatten(batch))
        )
        state = {spec.name: np.asarray(v) for spec, v in zip(interface.state, values, strict=True)}
        names = (spec.name.removeprefix("output_") for spec in interface.outputs)
        outputs.append(dict(zip(names, map(np.asarray, results), strict=True)))
    return outputs, state


def specs(batch: Any) -> Any:
    return tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), batch)


def both_ways(build: Program) -> dict[str, Any]:
    """Logs of both ways, and for each variable both values after the last step."""
    keras.utils.set_random_seed(1)
    model, batches = build()
    imported = import_keras_step(model, specs(batches[0]))
    # train_on_batch starts the metrics again for every batch, as this does.
    own_step = hasattr(model, "optimizers")
    outputs, state = compiled_steps(imported, batches, reset_metrics=not own_step)
    if own_step:
        step = tf.function(model.train_step)
        expected = [step(tf.nest.map_structure(tf.constant, batch)) for batch in batches]
    else:
        expected = [model.train_on_batch(*batch, return_dict=True) for batch in batches]
    return {
        "logs": {name: [float(step[name]) for step in outputs] for name in outputs[0]},
        "expected": {name: [float(step[name]) for step in expected] for name in expected[0]},
        "state": {name: value.astype(np.float64).ravel().tolist() for name, value in state.items()},
        "expected_state": {
            name: holder.numpy().astype(np.float64).ravel().tolist()
            for name, holder in imported.holders.items()
        },
    }


def evaluation_and_prediction() -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    model, batches = mlp("adam", metrics=["accuracy"]), vectors()
    evaluate = import_keras_step(model, specs(batches[0]), mode="eval")
    predict = import_keras_step(model, specs(batches[0][:1]), mode="infer")
    logs, _ = compiled_steps(evaluate, batches, reset_metrics=False)
    predictions, _ = compiled_steps(predict, [batch[:1] for batch in batches], reset_metrics=False)
    xs, ys = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return {
        "state": {"eval": list(evaluate.variables), "infer": list(predict.variables)},
        "logs": {name: float(value) for name, value in logs[-1].items()},
        "expected": model.evaluate(xs, ys, batch_size=8, verbose=0, return_dict=True),
        "predictions": np.concatenate([p["prediction"] for p in predictions]).tolist(),
        "expected_predictions": model.predict(xs, verbose=0).tolist(),
    }


def layers_of_compat_v1() -> dict[str, Any]:
    """tf.compat.v1.layers, which only tf_keras has, in a graph with a session."""
    v1 = tf.compat.v1
    batches = vectors()
    with tf.Graph().as_default() as graph:
        x, y = v1.placeholder(tf.float32, [8, 6]), v1.placeholder(tf.int32, [8])
        initializer = keras.initializers.GlorotUniform(1)
        h = v1.layers.dense(x, 8, tf.nn.relu, kernel_initializer=initializer, name="hidden")
        h = v1.layers.batch_normalization(v1.layers.dropout(h, 0.0, training=True), training=True)
        regularizer = keras.regularizers.L2(0.01)
        logits = v1.layers.dense(
            h, 3, kernel_initializer=initializer, kernel_regularizer=regularizer, name="out"
        )
        loss = v1.losses.sparse_softmax_cross_entropy(y, logits) + v1.losses.get_regularization_loss()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train = v1.train.AdamOptimizer(0.01).minimize(loss)
        imported = import_step(
            graph, inputs=[x, y], outputs={"loss": loss}, updates=[train], mode="train", seed=1
        )
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            initial = {v.op.name: session.run(v) for v in v1.global_variables()}
            expected = [session.run([loss, train], {x: a, y: b})[0] for a, b in batches]
    interface = step_interface(imported.module)
    step = jax.jit(step_function(imported.module))
    state: tuple[Any, ...] = tuple(initial[imported.variables[spec.name]] for spec in interface.state)
    losses = []
    for batch in batches:
        state, (value,) = step(state, tuple(batch))
        losses.append(float(value))
    return {
        "logs": {"loss": losses},
        "expected": {"loss": [float(e) for e in expected]},
        "variables": imported.variables,
    }


OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "evaluation_and_prediction": evaluation_and_prediction,
    "layers_of_compat_v1": layers_of_compat_v1,
}


def main() -> None:
    results = {
        name: both_ways(PROGRAMS[name]) if name in PROGRAMS else OTHERS[name]() for name in sys.argv[1:]
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
