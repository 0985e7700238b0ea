"""Models that train side by side in one program reach the values of separate programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, ModelInfo, MultiModelFusion
from estimator.config import MULTI_MODEL_STACK_KEY
from estimator.errors import (
    CallError,
    CheckpointReadError,
    InputFnError,
    ModelFnError,
    UnsupportedOnCsError,
)
from tests.programs.tf.events import read_losses, read_scalars
from tests.systems import RunningSystem

v1 = tf.compat.v1

STEPS, RECORDS = 10, 24
PARAMS = {
    "left": {"features": 6, "classes": 3, "batch": 8, "seed": 5, "optimizer": "AdamOptimizer"},
    "right": {"features": 9, "classes": 4, "batch": 6, "seed": 9, "optimizer": "AdagradOptimizer"},
}

ModelFn = Callable[..., Any]


def dense(x: Any, units: int, seed: int, name: str) -> Any:
    initializer = v1.glorot_uniform_initializer(seed=seed)
    shape = [int(x.shape[1]), units]
    return x @ v1.get_variable(name, shape, initializer=initializer, regularizer=tf.nn.l2_loss)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    """Takes from the collections of the graph all that programs take from there."""
    hidden = tf.nn.relu(dense(features["x"], 8, params["seed"], "hidden"))
    mean = v1.get_variable("mean", [8], initializer=v1.zeros_initializer(), trainable=False)
    centered = hidden - mean
    with tf.control_dependencies([centered]):  # else a session may move the mean before it is used
        moved = mean.assign_sub(0.1 * (mean - tf.reduce_mean(hidden, 0)))
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moved)
    logits = dense(centered, params["classes"], params["seed"] + 1, "out")
    if mode == "infer":
        named = {"classes": tf.argmax(logits, 1, output_type=tf.int32), "logits": logits}
        return EstimatorSpec(mode, predictions=named if params["classes"] == 3 else logits)
    v1.losses.sparse_softmax_cross_entropy(labels, logits)
    decay = tf.add_n([tf.nn.l2_loss(variable) for variable in v1.trainable_variables()])
    loss = v1.losses.get_total_loss() + 0.01 * decay
    if mode == "eval":
        accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, 1, output_type=tf.int32))
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    step = v1.train.get_or_create_global_step()
    optimizer = getattr(v1.train, params["optimizer"])(v1.train.exponential_decay(0.1, step, 3, 0.8))
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, global_step=step)
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params: dict[str, Any], mode: str) -> tf.data.Dataset:
    rng = np.random.default_rng(params["seed"])
    size = RECORDS // 8 * params["batch"]
    x = rng.normal(size=(size, params["features"])).astype(np.float32)
    y = x[:, : params["classes"]].argmax(1).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(params["batch"], drop_remainder=True)
    return dataset.repeat() if mode == "train" else dataset


def fusion_of(**checkpoints: Any) -> MultiModelFusion:
    models = [
        ModelInfo(model_fn, input_fn, params, factor, name, checkpoints.get(name))
        for (name, params), factor in zip(PARAMS.items(), (1, 2.5), strict=True)
    ]
    return MultiModelFusion(models)


def config(cs_ip: str | None = None) -> CSRunConfig:
    return CSRunConfig(cs_ip=cs_ip, save_summary_steps=1)


def fused(model_dir: Path, fusion: MultiModelFusion, cs_ip: str | None = None) -> CerebrasEstimator:
    return CerebrasEstimator(
        fusion.model_fn, model_dir, config=config(cs_ip), params=fusion.params, use_cs=cs_ip is not None
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CerebrasEstimator]:
    """Each model, trained without the other on this CPU."""
    found = {}
    for name, params in PARAMS.items():
        estimator = CerebrasEstimator(model_fn, tmp_path_factory.mktemp(name), config=config(), params=params)
        found[name] = estimator.train(input_fn, steps=STEPS, use_cs=False)
    return found


def assert_same_training(
    program: CerebrasEstimator, alone: dict[str, CerebrasEstimator], tolerance: float
) -> None:
    logged = {tag: list(values.values()) for tag, values in read_scalars(program.model_dir).items()}
    for name, other in alone.items():
        losses = read_losses(other.model_dir)
        np.testing.assert_allclose(logged[f"{name}/loss"], losses, rtol=tolerance)
        for variable in other.get_variable_names():
            of_variable, _, slot = variable.rpartition("/")
            scope = f"{name}/{name}/" if of_variable in other.get_variable_names() else f"{name}/"
            np.testing.assert_allclose(
                program.get_variable_value(scope + variable),
                other.get_variable_value(variable),
                rtol=10 * tolerance,
                atol=tolerance,
                err_msg=f"{name}: {variable} ({slot})",
            )
    sums = np.add(logged["left/loss"], logged["right/loss"])
    np.testing.assert_allclose(logged["loss"], sums, rtol=1e-6)
    assert program.get_variable_value("global_step") == len(sums)


def test_models_train_on_the_system_as_each_by_itself(
    system: RunningSystem, alone: dict[str, CerebrasEstimator], tmp_path: Path
) -> None:
    fusion = fusion_of()
    program = fused(tmp_path, fusion, system.address).train(fusion.input_fn, max_steps=STEPS)
    assert_same_training(program, alone, 1e-5)

    evaluated = program.evaluate(fusion.input_fn, steps=3, use_cs=True)
    expected = {name: other.evaluate(input_fn) for name, other in alone.items()}
    for name, metrics in expected.items():
        for key in ("loss", "accuracy"):
            assert evaluated[f"{name}/{key}"] == pytest.approx(metrics[key], rel=1e-5)
    assert evaluated["loss"] == pytest.approx(sum(m["loss"] for m in expected.values()), rel=1e-5)
    assert evaluated["global_step"] == STEPS

    batches = program.predict(fusion.input_fn, yield_single_examples=False, use_cs=True)
    predicted = next(iter(list(batches)))
    left = next(alone["left"].predict(input_fn, yield_single_examples=False))
    right = next(alone["right"].predict(input_fn, yield_single_examples=False))
    assert predicted.keys() == {"left/classes", "left/logits", "right"}
    np.testing.assert_array_equal(predicted["left/classes"], left["classes"])
    np.testing.assert_allclose(predicted["right"], right, rtol=1e-4, atol=1e-5)


def test_models_train_on_this_cpu_as_each_by_itself(
    alone: dict[str, CerebrasEstimator], tmp_path: Path
) -> None:
    fusion = fusion_of()
    program = fused(tmp_path, fusion).train(fusion.input_fn, steps=STEPS)
    assert_same_training(program, alone, 1e-6)
    with pytest.raises(InputFnError, match="as their first dimension; got sizes"):  # 8 and 6
        next(program.predict(fusion.input_fn))


def test_models_continue_from_their_own_checkpoints(
    alone: dict[str, CerebrasEstimator], tmp_path: Path
) -> None:
    """One model has the moments of its optimizer and its step; the other starts from step 0."""
    fusion = fusion_of(left=alone["left"].model_dir)
    program = fused(tmp_path / "fused", fusion)
    untrained = program.evaluate(fusion.input_fn)
    expected = alone["left"].evaluate(input_fn)
    assert untrained["left/loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert untrained["global_step"] == 0
    program.train(fusion.input_fn, steps=2)

    start = tmp_path / "on"
    start.mkdir()
    for file in Path(alone["left"].model_dir).glob(f"*ckpt-{STEPS}*"):
        (start / file.name).write_bytes(file.read_bytes())
    on = CerebrasEstimator(model_fn, start, config=config(), params=PARAMS["left"])
    on.train(input_fn, steps=2, use_cs=False)
    assert program.get_variable_value("left/global_step") == STEPS + 2
    assert program.get_variable_value("right/global_step") == 2
    for name in ("hidden", "out", "mean"):
        expected = on.get_variable_value(name)
        np.testing.assert_allclose(program.get_variable_value(f"left/{name}"), expected, rtol=1e-5, atol=1e-7)

    again = fusion_of(left=program.model_dir, right=program.model_dir)  # of a fused program
    evaluated = fused(tmp_path / "again", again).evaluate(again.input_fn)
    expected = program.evaluate(fusion.input_fn)
    assert evaluated.pop("global_step") == 0
    assert evaluated == pytest.approx({key: expected[key] for key in evaluated}, rel=1e-6)


def test_a_checkpoint_of_another_model_is_refused(
    alone: dict[str, CerebrasEstimator], tmp_path: Path
) -> None:
    other = fusion_of(right=alone["left"].model_dir)
    with pytest.raises(CheckpointReadError, match=r"right/hidden.*\(9, 8\).*\[6, 8\]"):
        fused(tmp_path, other).evaluate(other.input_fn)
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(v1.get_variable("hidden", [6, 8]).initializer)
        prefix = v1.train.Saver().save(session, str(tmp_path / "part"))
    lacking = fusion_of(left=prefix)
    with pytest.raises(CheckpointReadError, match="lacks the variables left/out of model 'left'"):
        fused(tmp_path, lacking).evaluate(lacking.input_fn)


def test_options_of_the_stack_and_the_estimator_are_passed_on() -> None:
    fusion = fusion_of()
    assert fusion.params == PARAMS
    assert fusion.stack_params == {
        MULTI_MODEL_STACK_KEY: {"deltat_scaling_factor": {"left": 1, "right": 2.5}}
    }
    unnamed = MultiModelFusion([ModelInfo(model_fn, input_fn), ModelInfo(model_fn, input_fn)])
    assert unnamed.params == {"model_0": {}, "model_1": {}}


def test_inputs_are_handed_to_the_right_model() -> None:
    """Inputs are Datasets with and without labels, and plain tensors; the parameters of the call are used."""

    def without_labels(params: dict[str, Any]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(tf.fill([2], params["value"]))

    def tensors() -> Any:
        return tf.zeros([4]), tf.ones([4])

    first = ModelInfo(model_fn, without_labels, {"value": 1.0}, name="first")
    second = ModelInfo(model_fn, without_labels, {"value": 2.0}, name="second")
    dataset = MultiModelFusion([first, second]).input_fn({"second": {"value": 5.0}})
    (element,) = dataset.as_numpy_iterator()
    assert {name: list(value) for name, value in element.items()} == {"first": [1, 1], "second": [5, 5]}
    with tf.Graph().as_default():
        mixed = MultiModelFusion([first, ModelInfo(model_fn, tensors, name="second")])
        features, labels = mixed.input_fn()
        assert features["first"].shape == [2]
        assert features["second"].shape == labels["second"].shape == [4]
        assert list(labels) == ["second"]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], r"at least one ModelInfo, got \[\]"),
        (ModelInfo(model_fn, input_fn), "a list of at least one ModelInfo"),
        ([model_fn], r"models\[0\] of MultiModelFusion must be a ModelInfo"),
        ([ModelInfo(model_fn, input_fn, name="a"), ModelInfo(model_fn, input_fn, name="a")], "'a' twice"),
        ([ModelInfo(model_fn, input_fn, name="a/b")], "scope of its variables.*got 'a/b'"),
        ([ModelInfo(model_fn, input_fn, None, 0)], "of model 'model_0' must be a number > 0, got 0"),
        ([ModelInfo(model_fn, input_fn, None, float("nan"))], "must be a number > 0, got nan"),
        ([ModelInfo(model_fn, input_fn, 3)], "params of model 'model_0' must be a dict or None, got 3"),  # type: ignore[arg-type]
        ([ModelInfo(lambda labels: None, input_fn)], "model 'model_0': .*must have the argument features"),
    ],
)
def test_models_that_cannot_be(models: Any, message: str) -> None:
    with pytest.raises(CallError, match=message):
        MultiModelFusion(models)


def changed(**fields: Any) -> ModelFn:
    def changed_model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        return model_fn(features, labels, mode, params)._replace(**fields)

    return changed_model_fn


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda features, labels, params: None, "model 'left': .*must return an EstimatorSpec"),
        (changed(scaffold=object()), "model 'left': it returns a scaffold"),
        (changed(mode="eval"), "model 'left': it returns an EstimatorSpec of mode 'eval', expected 'train'"),
        (lambda features, mode, params: None, "model 'left': .*has no argument labels"),
    ],
)
def test_a_model_fn_that_cannot_be_used(function: ModelFn, message: str, tmp_path: Path) -> None:
    fusion = MultiModelFusion([ModelInfo(function, input_fn, PARAMS["left"], name="left")])
    with pytest.raises(ModelFnError, match=message):
        fused(tmp_path, fusion).train(fusion.input_fn, steps=1)


def test_a_model_that_makes_no_step_is_refused(tmp_path: Path) -> None:
    def idle(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        return model_fn(features, labels, mode, params)._replace(train_op=tf.no_op())

    other = ModelInfo(model_fn, input_fn, PARAMS["right"], name="right")
    fusion = MultiModelFusion([ModelInfo(idle, input_fn, PARAMS["left"], name="left"), other])
    with pytest.raises(ModelFnError, match=r"model 'left': train_op .* does not advance the global step"):
        fused(tmp_path, fusion).train(fusion.input_fn, steps=1)


def test_metrics_in_a_training_step_are_refused_as_those_of_a_single_model(tmp_path: Path) -> None:
    def with_metrics(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = model_fn(features, labels, mode, params)
        return spec._replace(eval_metric_ops={"mean": v1.metrics.mean(spec.loss)})

    fusion = MultiModelFusion([ModelInfo(with_metrics, input_fn, PARAMS["left"], name="left")])
    with pytest.raises(UnsupportedOnCsError, match="mode 'train': left/mean"):
        fused(tmp_path, fusion).compile(fusion.input_fn, validate_only=True)


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    def counted(count: int) -> Callable[[], tf.data.Dataset]:
        return lambda: tf.data.Dataset.from_tensors(tf.zeros([2, 3])).repeat(count)

    def fusion(*inputs: Callable[..., Any]) -> MultiModelFusion:
        return MultiModelFusion([ModelInfo(model_fn, function) for function in inputs])

    with pytest.raises(InputFnError, match="numbers of batches: 3 of 'model_0', 4 of 'model_1'"):
        fusion(counted(3), counted(4)).input_fn()
    with pytest.raises(InputFnError, match="numbers of batches: 3 of 'model_0', 4 of 'model_1'"):
        fused(tmp_path, program := fusion(counted(3), counted(4))).evaluate(program.input_fn)
    endless = list(fusion(counted(3), counted(-1)).input_fn())
    assert len(endless) == 3
    with pytest.raises(InputFnError, match=r"model 'model_1': .*got a tuple of 3 members"):
        fusion(counted(3), lambda: tf.data.Dataset.from_tensors((1, 2, 3)).repeat(3)).input_fn()
    with pytest.raises(InputFnError, match="model 'model_0': input_fn must be a function, got 5"):
        fusion(5).input_fn()  # type: ignore[arg-type]
    whole = fusion_of()
    with pytest.raises(
        InputFnError, match="must be a dict of left, right, one for each model; got a dict of x"
    ):
        fused(tmp_path, whole).train(lambda mode: input_fn(PARAMS["left"], mode), steps=1)
