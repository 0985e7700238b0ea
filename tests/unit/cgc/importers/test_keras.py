"""Keras 3 layers and random operations in a v1 graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh.interface import step_interface
from cgc.errors import GraphImportError
from cgc.importers.tensorflow import import_step, keras_layer_updates

tf1 = tf.compat.v1
layers = tf.keras.layers


def placeholders(size: int = 16) -> tuple[Any, Any]:
    return tf1.placeholder(tf.float32, [size, 20], "x"), tf1.placeholder(tf.int32, [size], "y")


def cross_entropy(y: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def dense(units: int, seed: int, **arguments: Any) -> Any:
    initializer = tf.keras.initializers.GlorotUniform(seed=seed)
    return layers.Dense(units, kernel_initializer=initializer, **arguments)


@pytest.mark.parametrize("activations", ["relu gelu", "tanh sigmoid softplus", "elu selu silu"])
def test_dense_network_trains_as_in_a_session(activations: str, both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    h = layers.Flatten()(tf.reshape(x, [16, 4, 5]))
    for i, activation in enumerate(activations.split()):
        h = layers.Activation(activation)(dense(24, i)(h))
    h = layers.LayerNormalization()(h)
    loss = cross_entropy(y, dense(5, 2)(layers.Dropout(0.5)(h, training=False)))
    step = tf1.train.get_or_create_global_step()
    train = tf1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
    run = both_ways([x, y], {"loss": loss}, [train], digits(5))
    np.testing.assert_allclose(run.compiled.series("loss"), run.session.series("loss"), rtol=1e-5)
    for name, value in run.compiled.variables.items():
        np.testing.assert_allclose(value, run.session.variables[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert run.session.series("loss")[-1] < run.session.series("loss")[0]


def test_model_with_penalties_and_named_layers(both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    penalized = dense(24, 1, name="fc", activation="relu", kernel_regularizer=tf.keras.regularizers.L2(0.01))
    logits = dense(5, 2, name="out")(penalized(x))
    loss = cross_entropy(y, logits) + tf.add_n(penalized.losses)
    train = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    run = both_ways([x, y], {"loss": loss}, [train], digits(5))
    np.testing.assert_allclose(run.compiled.series("loss"), run.session.series("loss"), rtol=1e-5)
    assert {"state.model.fc/kernel", "state.optimizer.fc/kernel/Momentum"} <= set(run.imported.variables)


def test_batch_normalization_moves_its_averages(graph: tf.Graph, both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    normalized = layers.BatchNormalization(momentum=0.8)(dense(24, 1)(x), training=True)
    loss = cross_entropy(y, dense(5, 2)(tf.nn.relu(normalized)))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    updates = [train, *keras_layer_updates(graph)]
    assert len(updates) == 3
    run = both_ways([x, y], {"loss": loss}, updates, digits(4))
    np.testing.assert_allclose(run.compiled.series("loss"), run.session.series("loss"), rtol=1e-5)
    averages = [name for name in run.compiled.variables if "moving" in name]
    assert len(averages) == 2
    for name in averages:
        np.testing.assert_allclose(
            run.compiled.variables[name], run.session.variables[name], rtol=1e-5, atol=1e-6
        )
    alone = import_step(graph, inputs=[x, y], outputs={"loss": loss}, updates=[train], mode="train", seed=7)
    assert alone.variables == run.imported.variables


def test_layers_outside_the_step_are_not_updated(graph: tf.Graph) -> None:
    x, other = tf1.placeholder(tf.float32, [8, 4]), tf1.placeholder(tf.float32, [8, 4])
    layers.BatchNormalization()(other, training=True)
    y = layers.BatchNormalization()(x, training=True)
    imported = import_step(graph, inputs=[x], outputs={"y": y}, updates=[], mode="train", seed=0)
    assert sorted(imported.variables.values()) == [
        f"batch_normalization_1_1/{name}" for name in ("beta", "gamma", "moving_mean", "moving_variance")
    ]


def dropout_step(graph: tf.Graph, drop: Any, mode: str = "train") -> Any:
    """A step that gives the dropped-out ones of shape [64, 100] and advances the global step."""
    x = tf1.placeholder(tf.float32, [64, 100])
    step = tf1.train.get_or_create_global_step()
    return import_step(
        graph, inputs=[x], outputs={"dropped": drop(x)}, updates=[step.assign_add(1)], mode=mode, seed=11
    )


DROPOUTS = {
    "keras": lambda x: layers.Dropout(0.25, seed=3)(x, training=True),
    "op_seed": lambda x: tf.nn.dropout(x, rate=0.25, seed=3),
    "no_seed": lambda x: tf.nn.dropout(x, rate=0.25),
    "v1": lambda x: tf1.nn.dropout(x, keep_prob=0.75),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_draws_a_new_mask_every_step_and_the_same_after_a_restart(
    name: str, graph: tf.Graph, compile_step: Any
) -> None:
    imported = dropout_step(graph, DROPOUTS[name])
    specs = step_interface(imported.module).state
    initial = {imported.variables[spec.name]: np.zeros(spec.shape, spec.dtype) for spec in specs}
    batches = [(np.ones((64, 100), np.float32),)] * 4
    whole = compile_step(imported, initial, batches)
    first = compile_step(imported, initial, batches[:2])
    rest = compile_step(imported, first.variables, batches[2:])
    masks = whole.series("dropped")
    np.testing.assert_array_equal(np.concatenate([first.series("dropped"), rest.series("dropped")]), masks)
    np.testing.assert_allclose(np.unique(masks), [0, 1 / 0.75], rtol=1e-6)
    assert abs((masks == 0).mean() - 0.25) < 0.02
    assert all(0.25 < (masks[0] != mask).mean() < 0.5 for mask in masks[1:])


def test_gradient_of_dropout_uses_the_mask_of_the_forward_pass(graph: tf.Graph, compile_step: Any) -> None:
    x = tf1.placeholder(tf.float32, [64, 100])
    dropped = layers.Dropout(0.5, seed=1)(tf.nn.dropout(x, rate=0.5, seed=1), training=True)
    (gradient,) = tf1.gradients(dropped, [x])
    step = tf1.train.get_or_create_global_step()
    outputs = {"dropped": dropped, "gradient": gradient}
    imported = import_step(
        graph, inputs=[x], outputs=outputs, updates=[step.assign_add(1)], mode="train", seed=0
    )
    initial = {
        name: np.zeros((2,) if "seed" in name else (), np.int32) for name in imported.variables.values()
    }
    trace = compile_step(imported, initial, [(np.ones((64, 100), np.float32),)])
    np.testing.assert_array_equal(trace.series("dropped"), trace.series("gradient"))


def test_seeds_of_keras_layers_advance_although_nothing_in_the_graph_asks_for_it(graph: tf.Graph) -> None:
    imported = dropout_step(graph, DROPOUTS["keras"])
    name = "state.model.seed_generator/seed_generator_state"
    assert name in step_interface(imported.module).updated
    (update,) = keras_layer_updates(graph)
    with tf1.Session(graph=graph) as session:
        session.run(tf1.variables_initializer(graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)))
        session.run(update)
        variable = next(v for v in tf1.global_variables() if "seed_generator_state" in v.name)
        assert session.run(variable).tolist() == [3, 1]


def test_layers_that_do_not_draw_leave_their_seeds_out(graph: tf.Graph) -> None:
    imported = dropout_step(graph, lambda x: layers.Dropout(0.25)(x, training=False), mode="eval")
    assert list(imported.variables) == ["state.global_step"]


def test_two_layers_draw_different_masks(graph: tf.Graph, compile_step: Any) -> None:
    x = tf1.placeholder(tf.float32, [64, 100])
    outputs = {"a": tf.nn.dropout(x, rate=0.5), "b": tf.nn.dropout(x, rate=0.5)}
    imported = import_step(graph, inputs=[x], outputs=outputs, updates=[], mode="infer", seed=0)
    trace = compile_step(imported, {}, [(np.ones((64, 100), np.float32),)])
    assert 0.4 < (trace.series("a") != trace.series("b")).mean() < 0.6


def test_normal_noise_has_the_moments_of_the_distribution(graph: tf.Graph, compile_step: Any) -> None:
    x = tf1.placeholder(tf.float32, [100, 100])
    noisy = x + tf.random.normal([100, 100], mean=3.0, stddev=2.0)
    imported = import_step(graph, inputs=[x], outputs={"noisy": noisy}, updates=[], mode="infer", seed=0)
    values = compile_step(imported, {}, [(np.zeros((100, 100), np.float32),)]).series("noisy")
    assert abs(values.mean() - 3) < 0.1
    assert abs(values.std() - 2) < 0.1


def test_drawing_without_a_global_step_in_training_is_refused(graph: tf.Graph) -> None:
    x, y = placeholders()
    loss = cross_entropy(y, dense(5, 1)(tf.nn.dropout(x, rate=0.5)))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with pytest.raises(GraphImportError, match="get_or_create_global_step") as caught:
        import_step(graph, inputs=[x, y], outputs={"loss": loss}, updates=[train], mode="train", seed=0)
    assert "dropout/random_uniform/RandomUniform" in str(caught.value)
    assert __file__ in str(caught.value)
