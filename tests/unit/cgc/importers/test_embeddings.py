"""Training of embedding tables with sparse gradients: the same numbers as a plain TensorFlow session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh.text import print_module
from cgc.errors import DynamicShapeError, GraphImportError
from cgc.importers.tensorflow import import_step
from cgc.kernels import match_kernels
from cgc.passes.pipeline import run_pipeline

tf1 = tf.compat.v1
train = tf1.train
raw = tf.raw_ops

STEPS = 20
ROWS, WIDTH, BATCH, WORDS = 23, 4, 8, 5
NEVER = (0, 7, 22)
"""Rows of the table that no batch names."""

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: train.GradientDescentOptimizer(0.2),
    "momentum": lambda: train.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda: train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: train.AdamOptimizer(0.02),
    "adam_tuned": lambda: train.AdamOptimizer(0.02, beta1=0.8, beta2=0.95, epsilon=1e-4),
    "rmsprop": lambda: train.RMSPropOptimizer(0.01, decay=0.8),
    "rmsprop_momentum": lambda: train.RMSPropOptimizer(0.01, decay=0.8, momentum=0.5),
    "rmsprop_centered": lambda: train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: train.AdagradOptimizer(0.2),
    "adadelta": lambda: train.AdadeltaOptimizer(2.0, rho=0.9, epsilon=1e-4),
    "adagrad_da": lambda: train.AdagradDAOptimizer(
        0.1,
        train.get_or_create_global_step(),
        l1_regularization_strength=0.001,
        l2_regularization_strength=0.01,
    ),
    "ftrl": lambda: train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.01
    ),
    "ftrl_power": lambda: train.FtrlOptimizer(0.1, learning_rate_power=-0.7),
    "ftrl_shrinkage": lambda: train.FtrlOptimizer(0.1, l2_shrinkage_regularization_strength=0.01),
    "proximal_sgd": lambda: train.ProximalGradientDescentOptimizer(
        0.2, l1_regularization_strength=0.001, l2_regularization_strength=0.01
    ),
    "proximal_adagrad": lambda: train.ProximalAdagradOptimizer(
        0.2, l1_regularization_strength=0.001, l2_regularization_strength=0.01
    ),
}

SHARED = ("momentum", "adam", "rmsprop_centered", "adagrad")
"""One of each kind of update: the optimizers of most tests."""

DENSE_STATE = {"adam", "adam_tuned"}
"""Optimizers that move every row at every step: TensorFlow decays Adam's moments as a whole."""


def soaking(names: Iterable[str]) -> list[Any]:
    """Return parameters that leave optimizers of a common kind to `make soak`."""
    quick = {*SHARED, "sgd", "ftrl_power"}
    return [name if name in quick else pytest.param(name, marks=pytest.mark.soak) for name in names]


def word_batches(count: int = STEPS, shape: Sequence[int] = (BATCH, WORDS)) -> list[tuple[np.ndarray, ...]]:
    """Ids that occur several times, never those of NEVER, and a class for each sample made of them."""
    rng = np.random.default_rng(3)
    words = np.setdiff1d(np.arange(ROWS), NEVER)
    ids = [rng.choice(words, shape).astype(np.int32) for _ in range(count)]
    assert any(len(np.unique(batch)) < batch.size for batch in ids)
    return [(batch, (batch.reshape(BATCH, -1).sum(1) % 3).astype(np.int32)) for batch in ids]


def placeholders(shape: Sequence[int] = (BATCH, WORDS), dtype: Any = tf.int32) -> tuple[Any, Any]:
    return tf1.placeholder(dtype, shape, "ids"), tf1.placeholder(tf.int32, [BATCH], "y")


def embedding_table(name: str = "table", rows: int = ROWS, width: int = WIDTH) -> Any:
    return tf1.get_variable(name, [rows, width], initializer=tf1.random_normal_initializer(seed=1))


def classes_loss(x: Any, y: Any) -> Any:
    kernel = tf1.get_variable(
        "kernel", [int(x.shape[-1]), 3], initializer=tf1.glorot_uniform_initializer(seed=4)
    )
    return tf1.losses.sparse_softmax_cross_entropy(y, x @ kernel)


def check(run: Any) -> None:
    """Losses to 1e-5 and variables, slots among them, to 1e-4; the step learns something."""
    plain, compiled = run.session.series("loss"), run.compiled.series("loss")
    assert len(plain) == STEPS
    assert plain[0] != plain[-1]
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)
    assert set(run.compiled.variables) == set(run.session.variables)
    for name, value in run.compiled.variables.items():
        np.testing.assert_allclose(value, run.session.variables[name], rtol=1e-4, atol=1e-6, err_msg=name)


def minimize(optimizer: Any, loss: Any) -> Any:
    return optimizer.minimize(loss, global_step=train.get_or_create_global_step())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mean_pooling_of_repeated_ids(name: str, both_ways: Any) -> None:
    ids, y = placeholders()
    table = embedding_table()
    loss = classes_loss(tf.reduce_mean(tf.nn.embedding_lookup(table, ids), axis=1), y)
    run = both_ways([ids, y], {"loss": loss}, [minimize(OPTIMIZERS[name](), loss)], word_batches())
    check(run)
    initial_slots = {key: value for key, value in run.compiled.variables.items() if key.startswith("table/")}
    for key, value in initial_slots.items():
        assert np.ptp(value[list(NEVER)]) == 0, f"{key}: rows that no batch names moved"
    assert ("cirh.Unique" in print_module(run.imported.module)) == (name != "sgd")


@pytest.mark.parametrize("name", soaking(sorted(set(OPTIMIZERS) - DENSE_STATE)))
def test_rows_that_no_batch_names_keep_every_bit(name: str, graph: tf.Graph, compile_step: Any) -> None:
    ids, y = placeholders()
    loss = classes_loss(tf.reduce_mean(tf.nn.embedding_lookup(embedding_table(), ids), axis=1), y)
    update = minimize(OPTIMIZERS[name](), loss)
    step = import_step(graph, inputs=[ids, y], outputs={"loss": loss}, updates=[update], mode="train", seed=1)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        initial = session.run({v.op.name: v for v in tf1.global_variables()})
    final = compile_step(step, initial, word_batches(3)).variables
    for key in final:
        if key.startswith("table"):
            rest = list(NEVER)
            assert final[key][rest].tobytes() == initial[key][rest].tobytes(), key
            assert not np.array_equal(final[key], initial[key]), key


@pytest.mark.parametrize("name", SHARED)
def test_two_lookups_of_one_table(name: str, both_ways: Any) -> None:
    """TensorFlow joins the two sparse gradients; an id may occur in both lookups."""
    ids, y = placeholders(dtype=tf.int64)
    table = embedding_table()
    first = tf.nn.embedding_lookup(table, ids[:, :2])
    rest = tf.gather(table, ids[:, 1:])
    pooled = tf.concat([tf.reduce_sum(first, axis=1), tf.reduce_max(rest, axis=1)], axis=1)
    loss = classes_loss(pooled, y)
    batches = [(ids_.astype(np.int64), y_) for ids_, y_ in word_batches()]
    check(both_ways([ids, y], {"loss": loss}, [minimize(OPTIMIZERS[name](), loss)], batches))


@pytest.mark.parametrize("name", SHARED)
def test_tied_embeddings(name: str, both_ways: Any) -> None:
    """The table also makes the logits; its gradient is the sum of a dense and a sparse one."""
    ids, y = placeholders()
    table = embedding_table()
    bias = tf1.get_variable("bias", [ROWS], initializer=tf1.zeros_initializer())
    hidden = tf.tanh(tf.reduce_mean(tf.nn.embedding_lookup(table, ids), axis=1))
    loss = tf1.losses.sparse_softmax_cross_entropy(y, tf.matmul(hidden, table, transpose_b=True) + bias)
    check(both_ways([ids, y], {"loss": loss}, [minimize(OPTIMIZERS[name](), loss)], word_batches()))


@pytest.mark.parametrize("name", SHARED)
def test_positions_and_words(name: str, both_ways: Any) -> None:
    """Positions are known while importing: each occurs once, and nothing has to be found on the device."""
    ids, y = placeholders()
    words, positions = embedding_table(), embedding_table("positions", WORDS + 2)
    places = tf.constant([0, 1, 2, 3, 1])
    x = tf.nn.embedding_lookup(words, ids) + tf.nn.embedding_lookup(positions, places)
    loss = classes_loss(tf.reduce_mean(tf.tanh(x), axis=1), y)
    run = both_ways([ids, y], {"loss": loss}, [minimize(OPTIMIZERS[name](), loss)], word_batches())
    check(run)
    assert print_module(run.imported.module).count("cirh.Unique") == 1


@pytest.mark.parametrize("name", SHARED)
def test_rank_one_ids_and_clipping(name: str, both_ways: Any) -> None:
    """Clipping by the global norm scales the rows of the sparse gradient before they are joined."""
    ids, y = placeholders([BATCH])
    loss = classes_loss(tf.nn.embedding_lookup(embedding_table(width=1), ids), y)
    optimizer = OPTIMIZERS[name]()
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = tf.clip_by_global_norm(gradients, 0.01)
    update = optimizer.apply_gradients(
        zip(clipped, variables, strict=True), train.get_or_create_global_step()
    )
    run = both_ways([ids, y], {"loss": loss, "norm": norm}, [update], word_batches(shape=(BATCH,)))
    check(run)
    np.testing.assert_allclose(run.compiled.series("norm"), run.session.series("norm"), rtol=1e-5)


def test_gather_from_a_computed_tensor_and_along_another_axis(both_ways: Any) -> None:
    """Here the sparse gradients end within the graph, and the variables have dense ones."""
    ids, y = placeholders()
    table = embedding_table()
    rows = tf.gather(tf.tanh(table), ids)
    columns = tf.gather(tf.transpose(table), ids, axis=1)
    pooled = tf.reduce_mean(rows, axis=1) + tf.reduce_mean(tf.transpose(columns, [1, 2, 0]), axis=1)
    loss = classes_loss(pooled, y)
    check(both_ways([ids, y], {"loss": loss}, [minimize(OPTIMIZERS["adam"](), loss)], word_batches()))


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_an_embedding_layer_of_keras(name: str, both_ways: Any) -> None:
    ids, y = placeholders()
    table = tf.keras.initializers.RandomUniform(-0.05, 0.05, seed=4)
    rows = tf.keras.layers.Embedding(ROWS, WIDTH, embeddings_initializer=table)(ids)
    loss = classes_loss(tf.keras.layers.GlobalAveragePooling1D()(rows), y)
    run = both_ways([ids, y], {"loss": loss}, [minimize(OPTIMIZERS[name](), loss)], word_batches())
    check(run)
    assert "cirh.Unique" in print_module(run.imported.module)


def test_an_update_within_a_branch(both_ways: Any) -> None:
    ids, y = placeholders()
    loss = classes_loss(tf.reduce_mean(tf.nn.embedding_lookup(embedding_table(), ids), axis=1), y)
    optimizer = OPTIMIZERS["momentum"]()
    gradients = optimizer.compute_gradients(loss)
    step = train.get_or_create_global_step()

    def apply() -> Any:
        return tf.group(optimizer.apply_gradients(gradients))

    optimizer._create_slots([v for _, v in gradients])
    update = tf.cond(tf.equal(step % 2, 0), apply, tf.no_op)
    with tf.control_dependencies([update]):
        update = tf1.assign_add(step, 1)
    check(both_ways([ids, y], {"loss": loss}, [update], word_batches()))


def test_rows_written_by_hand(both_ways: Any) -> None:
    """The slots of a lazy optimizer: gathered, computed and written back for the rows that occur."""
    ids = tf1.placeholder(tf.int32, [6])
    x = tf1.placeholder(tf.float32, [6, WIDTH])
    table = embedding_table()
    places, numbers = tf.unique(ids)
    sums = tf.math.unsorted_segment_sum(x, numbers, tf.shape(places)[0])
    moved = 0.9 * tf.gather(table, places) + tf.square(sums) / 2.0
    loss = tf.nn.l2_loss(table)
    with tf.control_dependencies([loss]):  # a session would else be free to write before it reads
        update = tf1.scatter_update(table, places, moved)
    rng = np.random.default_rng(8)
    batches = [
        (rng.integers(0, 9, 6).astype(np.int32), rng.normal(size=(6, WIDTH)).astype(np.float32))
        for _ in range(STEPS)
    ]
    check(both_ways([ids, x], {"loss": loss}, [update.op], batches))


RAW: dict[str, tuple[int, Callable[..., Any]]] = {
    "keras_momentum": (
        1,
        lambda **v: raw.ResourceSparseApplyKerasMomentum(accum=v.pop("s0"), lr=0.1, momentum=0.9, **v),
    ),
    "keras_nesterov": (
        1,
        lambda **v: raw.ResourceSparseApplyKerasMomentum(
            accum=v.pop("s0"), lr=0.1, momentum=0.9, use_nesterov=True, **v
        ),
    ),
    "adagrad_without_slots": (
        1,
        lambda **v: raw.ResourceSparseApplyAdagrad(accum=v.pop("s0"), lr=0.1, update_slots=False, **v),
    ),
    "adagrad_v2": (
        1,
        lambda **v: raw.ResourceSparseApplyAdagradV2(accum=v.pop("s0"), lr=0.1, epsilon=1e-3, **v),
    ),
    "ftrl_linear_by_rate": (
        2,
        lambda **v: raw.ResourceSparseApplyFtrlV2(
            accum=v.pop("s0"),
            linear=v.pop("s1"),
            lr=0.1,
            l1=0.01,
            l2=0.1,
            l2_shrinkage=0.1,
            lr_power=-0.5,
            multiply_linear_by_lr=True,
            **v,
        ),
    ),
}


@pytest.mark.parametrize("name", RAW)
def test_training_ops_that_no_v1_optimizer_uses(name: str, both_ways: Any) -> None:
    ids, x = tf1.placeholder(tf.int32, [6]), tf1.placeholder(tf.float32, [6, WIDTH])
    table = embedding_table()
    places, numbers = tf.unique(ids)
    rows = tf.math.unsorted_segment_sum(x, numbers, tf.shape(places)[0])
    slot_count, apply = RAW[name]
    slots = {
        f"s{i}": tf1.get_variable(f"s{i}", table.shape, initializer=tf1.constant_initializer(0.1)).handle
        for i in range(slot_count)
    }
    loss = tf.nn.l2_loss(table)
    with tf.control_dependencies([loss]):
        update = apply(var=table.handle, grad=rows, indices=places, **slots)
    rng = np.random.default_rng(8)
    batches = [
        (rng.integers(0, 9, 6).astype(np.int32), rng.normal(size=(6, WIDTH)).astype(np.float32))
        for _ in range(STEPS)
    ]
    check(both_ways([ids, x], {"loss": loss}, [update], batches))


def test_numbers_are_those_of_tensorflow(both_ways: Any) -> None:
    ids = tf1.placeholder(tf.int64, [7])
    values = tf1.placeholder(tf.int64, [7])
    numbers = tf.unique(ids, out_idx=tf.int64)[1]
    folded = tf.unique(tf.constant([4, 9, 4, 2, 9]))
    outputs = {"numbers": numbers + 0 * values, "folded": folded[0], "places": folded[1]}
    rng = np.random.default_rng(8)
    batches = [tuple(rng.integers(-3, 4, (2, 7))) for _ in range(5)]
    run = both_ways([ids, values], outputs, [], batches, mode="infer")
    for name in outputs:
        np.testing.assert_array_equal(run.compiled.series(name), run.session.series(name))


def test_names_of_state_where_only_a_table_is_trained(graph: tf.Graph) -> None:
    ids, _ = placeholders()
    loss = tf.reduce_sum(tf.nn.embedding_lookup(embedding_table(), ids) ** 2)
    update = train.AdamOptimizer().minimize(loss)
    step = import_step(graph, inputs=[ids], outputs={"loss": loss}, updates=[update], mode="train", seed=1)
    assert step.variables == {
        "state.model.table": "table",
        "state.optimizer.beta1_power": "beta1_power",
        "state.optimizer.beta2_power": "beta2_power",
        "state.optimizer.table/Adam": "table/Adam",
        "state.optimizer.table/Adam_1": "table/Adam_1",
    }


@pytest.mark.parametrize("name", soaking(OPTIMIZERS))
def test_every_op_of_the_step_has_its_kernel_and_the_table_one(name: str, graph: tf.Graph) -> None:
    ids, y = placeholders()
    with tf1.name_scope("words"):
        rows = tf.nn.embedding_lookup(embedding_table(), ids)
    loss = classes_loss(tf.reduce_mean(rows, axis=1), y)
    update = minimize(OPTIMIZERS[name](), loss)
    step = import_step(graph, inputs=[ids, y], outputs={"loss": loss}, updates=[update], mode="train", seed=1)
    run_pipeline(step.module)
    kernels = match_kernels(step.module).kernels
    count = sum(1 for op in step.module.walk() if op.name.startswith("cirh."))
    assert sorted(i for kernel in kernels for i in kernel.op_indices) == list(range(count))
    (table,) = [kernel for kernel in kernels if kernel.family == "embedding"]
    for kernel in kernels:
        if kernel is not table:
            assert not {"cirh.Gather", "cirh.Scatter", "cirh.Unique", "cirh.ScatterNd"} & set(kernel.ops)
            assert kernel.family != "optimizer"


def refusal(graph: tf.Graph, error: type[GraphImportError], inputs: list[Any], **more: Any) -> str:
    with pytest.raises(GraphImportError) as caught:
        import_step(graph, inputs=inputs, mode="train", seed=0, **{"outputs": {}, "updates": [], **more})
    assert type(caught.value) is error
    return str(caught.value)


COUNTING: dict[str, Callable[[Any, Any], Any]] = {
    "how_many": lambda places, rows: tf.cast(tf.size(places), tf.float32),
    "mean": lambda places, rows: tf.reduce_mean(rows),
    "sum": lambda places, rows: tf.reduce_sum(places),
    "norm": lambda places, rows: tf.nn.l2_loss(rows),
    "shape_of_rows": lambda places, rows: tf.zeros(tf.shape(rows)),
    "product": lambda places, rows: tf.matmul(rows, tf.ones([WIDTH, 2])),
    "weights_per_row": lambda places, rows: rows * tf.constant(np.ones((6, 1), np.float32)),
    "concat": lambda places, rows: tf.concat([rows, rows], 0),
    "rows": lambda places, rows: rows,
}


@pytest.mark.parametrize("name", COUNTING)
def test_what_would_count_the_padding_is_refused(name: str, graph: tf.Graph) -> None:
    ids, x = tf1.placeholder(tf.int32, [6], "ids"), tf1.placeholder(tf.float32, [6, WIDTH])
    places, numbers = tf.unique(ids)
    rows = tf.math.unsorted_segment_sum(x, numbers, tf.shape(places)[0])
    message = refusal(graph, DynamicShapeError, [ids, x], outputs={"y": COUNTING[name](places, rows)})
    assert (
        "has a size that depends on the data: the number of distinct values that tf.unique finds" in message
    )
    assert f"{__file__}:" in message or "output y" in message


def test_sizes_that_do_not_depend_on_the_data_are_known(graph: tf.Graph, compile_step: Any) -> None:
    ids, x = tf1.placeholder(tf.int32, [6]), tf1.placeholder(tf.float32, [6, WIDTH])
    places, numbers = tf.unique(ids)
    rows = tf.math.unsorted_segment_sum(x, numbers, tf.shape(places)[0])
    outputs = {"y": tf.zeros([2, tf.shape(rows)[1]])}
    step = import_step(graph, inputs=[ids, x], outputs=outputs, updates=[], mode="infer", seed=0)
    batch = (np.zeros(6, np.int32), np.zeros((6, WIDTH), np.float32))
    assert compile_step(step, {}, [batch]).series("y").shape == (1, 2, WIDTH)


def test_rows_of_two_different_uniques_do_not_mix(graph: tf.Graph) -> None:
    ids, others = tf1.placeholder(tf.int32, [6]), tf1.placeholder(tf.int32, [6])
    x = tf1.placeholder(tf.float32, [6, WIDTH])
    places, numbers = tf.unique(ids)
    rows = tf.math.unsorted_segment_sum(x, numbers, tf.shape(places)[0])
    table = embedding_table()
    update = tf1.scatter_add(table, tf.unique(others)[0], rows)
    message = refusal(graph, DynamicShapeError, [ids, others, x], updates=[update.op])
    assert "depends on the data" in message


def test_a_sparse_update_of_rows_that_may_repeat_gives_advice(graph: tf.Graph) -> None:
    ids, x = tf1.placeholder(tf.int32, [6], "ids"), tf1.placeholder(tf.float32, [6, WIDTH])
    table, accum = embedding_table(), embedding_table("accum")
    update = tf.raw_ops.ResourceSparseApplyAdagrad(
        var=table.handle, accum=accum.handle, lr=0.1, grad=x, indices=ids
    )
    message = refusal(graph, GraphImportError, [ids, x], updates=[update])
    assert "its indices (ids:0) may refer to a row twice" in message
    assert "tf.unique" in message


def test_unique_of_floats_is_refused(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [6])
    message = refusal(graph, GraphImportError, [x], outputs={"y": tf.unique(x)[1]})
    assert "it is applied to float32[6], expected int32 or int64 of rank 1" in message
