"""Session hooks: all of them on this CPU, those that only look on the CS system."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from estimator import (
    CerebrasEstimator,
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    TrainSpec,
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
    train_and_evaluate,
)
from estimator.cs.hooks import _ALTERNATIVES
from estimator.errors import CallError, UnsupportedOnCsError
from estimator.summaries import EventWriter
from tests.systems import RunningSystem

Tiny = Callable[..., CerebrasEstimator]
InputFn = Callable[..., Any]
train = tf.compat.v1.train


class Watching(train.SessionRunHook):
    """Looks at the loss, and asks for the global step whenever it is called."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.losses: list[float] = []
        self.steps: list[int] = []
        self.ended = False
        self.stop_at = stop_at

    def begin(self) -> None:
        self.step = train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        assert train.get_global_step() is self.step
        loss = tf.compat.v1.get_default_graph().get_tensor_by_name("the_loss:0")
        return train.SessionRunArgs({"loss": loss, "both": [loss, self.step]})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        assert train.get_global_step() is self.step
        assert run_values.results["both"][0] == run_values.results["loss"]
        self.losses.append(float(run_values.results["loss"]))
        self.steps.append(int(run_context.session.run(self.step)))
        if self.steps[-1] == self.stop_at:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        assert train.get_global_step() is self.step
        self.ended = True


@pytest.fixture
def named(tiny_model: Callable[..., EstimatorSpec]) -> Callable[..., EstimatorSpec]:
    """The tiny model, whose loss has a name."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = tiny_model(features, labels, mode, params)
        tf.identity(2 * spec.loss, "twice")
        return spec._replace(loss=tf.identity(spec.loss, "the_loss"))

    return model_fn


@pytest.fixture(params=[None, "system"], ids=["on this CPU", "on the CS system"])
def cs_ip(request: pytest.FixtureRequest, system: RunningSystem) -> str | None:
    return None if request.param is None else system.address


def test_a_hook_sees_loss_and_step_of_every_step(
    tiny: Tiny, tiny_input: InputFn, named: Any, system: RunningSystem, tmp_path: Path
) -> None:
    seen = {}
    for name, cs_ip in (("cpu", None), ("cs", system.address)):
        estimator = tiny(model_fn=named, cs_ip=cs_ip, model_dir=tmp_path / name)
        for steps in (3, 2):
            hook = seen[name, steps] = Watching()
            estimator.train(tiny_input, steps=steps, hooks=[hook])
            assert hook.ended
    assert seen["cs", 3].steps == seen["cpu", 3].steps == [1, 2, 3]
    assert seen["cs", 2].steps == seen["cpu", 2].steps == [4, 5]
    assert seen["cs", 3].losses == pytest.approx(seen["cpu", 3].losses, rel=1e-5)


def test_the_graph_is_the_default_one_in_every_call(tiny: Tiny, tiny_input: InputFn, named: Any) -> None:
    def predicting(features: Any, mode: str) -> EstimatorSpec:
        tf.identity(tf.reduce_sum(features), "the_loss")
        return EstimatorSpec(mode, predictions=features)

    estimator = tiny(model_fn=named)
    estimator.train(tiny_input, steps=1)
    evaluating, predictor = Watching(), Watching()
    estimator.evaluate(tiny_input, steps=2, hooks=[evaluating])
    predictions = tiny(model_fn=predicting, params={}, model_dir=None).predict(tiny_input, hooks=[predictor])
    next(predictions)
    assert tf.compat.v1.get_default_graph() is not evaluating.step.graph
    assert len(list(predictions)) == 23
    assert (len(evaluating.losses), evaluating.ended) == (2, True)
    assert (len(predictor.losses), predictor.ended) == (3, True)


def test_hooks_of_tensorflow(
    tiny: Tiny, tiny_input: InputFn, named: Any, cs_ip: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = named(features, labels, mode, params)
        hooks = (train.LoggingTensorHook({"twice": "twice"}, every_n_iter=2), train.NanTensorHook(spec.loss))
        return spec._replace(training_hooks=hooks)

    tf.compat.v1.logging.set_verbosity("INFO")
    caplog.set_level(logging.INFO)
    estimator = tiny(model_fn=model_fn, cs_ip=cs_ip)
    estimator.train(tiny_input, max_steps=50, hooks=[train.StopAtStepHook(last_step=5)])
    assert estimator.get_variable_value("global_step") == 5
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if line.startswith("twice = ")]) == 3


def test_the_number_of_steps_may_come_from_a_hook(tiny: Tiny, tiny_input: InputFn, cs_ip: str | None) -> None:
    estimator = tiny(cs_ip=cs_ip)
    for _ in range(2):
        estimator.train(tiny_input, hooks=[train.StopAtStepHook(num_steps=4)])
    assert estimator.get_variable_value("global_step") == 8


def test_a_saver_hook_decides_when_checkpoints_are_written(
    tiny: Tiny, tiny_input: InputFn, system: RunningSystem
) -> None:
    class Listener(train.CheckpointSaverListener):
        saved: tuple[int, ...] = ()

        def after_save(self, session: Any, global_step_value: int) -> None:
            self.saved += (global_step_value,)

    estimator, listener = tiny(cs_ip=system.address), Listener()
    saver = train.CheckpointSaverHook(estimator.model_dir, save_steps=3, listeners=[listener])
    estimator.train(tiny_input, steps=7, hooks=[saver])
    assert listener.saved == (0, 3, 6, 7)
    elsewhere = train.CheckpointSaverHook("elsewhere", save_steps=3)
    with pytest.raises(UnsupportedOnCsError, match=r"CheckpointSaverHook .*It writes 'elsewhere/model.ckpt'"):
        estimator.train(tiny_input, steps=7, hooks=[elsewhere])


def test_early_stopping_on_the_loss(
    tiny: Tiny, tiny_input: InputFn, named: Any, cs_ip: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """On the CS system this happens some steps later, since it computes ahead of its results."""
    caplog.set_level(logging.INFO)
    estimator, hook = tiny(model_fn=named, cs_ip=cs_ip), Watching(stop_at=4)
    estimator.train(tiny_input, max_steps=100_000, hooks=[hook])
    assert hook.steps == [1, 2, 3, 4]
    assert 4 <= estimator.get_variable_value("global_step") < 100_000
    assert hook.ended
    if cs_ip is not None:
        assert "Watching asks to stop at global step 4" in caplog.text


def test_early_stopping_on_an_evaluation_metric(tiny: Tiny, tiny_input: InputFn, cs_ip: str | None) -> None:
    """The evaluations run between the steps, on this CPU."""
    estimator = tiny(cs_ip=cs_ip, save_checkpoints_steps=5, params={"learning_rate": 0.0})
    hook = stop_if_no_decrease_hook(estimator, "loss", 10, run_every_secs=None, run_every_steps=1)
    metrics = train_and_evaluate(
        estimator,
        TrainSpec(tiny_input, 100_000, hooks=[hook]),
        EvalSpec(tiny_input, 1, start_delay_secs=0, throttle_secs=0),
    )
    assert 15 <= metrics["global_step"] < 100_000
    assert metrics["global_step"] == estimator.get_variable_value("global_step")


@pytest.mark.parametrize(
    ("make", "limit", "stops"),
    [
        (stop_if_higher_hook, 0.5, True),
        (stop_if_higher_hook, 0.9, False),
        (stop_if_lower_hook, 0.2, True),
        (stop_if_lower_hook, 0.01, False),
        (stop_if_no_increase_hook, 20, True),
        (stop_if_no_increase_hook, 21, False),
        (stop_if_no_decrease_hook, 10, True),
        (stop_if_no_decrease_hook, 31, False),
    ],
)
def test_rules_of_early_stopping(tiny: Tiny, make: Callable[..., Any], limit: float, stops: bool) -> None:
    """The metric is 0.1 at step 10, then 0.6, 0.3 and 0.4."""
    estimator = tiny()
    with EventWriter(Path(estimator.eval_dir())) as events:
        for step, value in ((10, 0.1), (20, 0.6), (30, 0.3), (40, 0.4)):
            events.scalars(step, {"accuracy": value})
    assert asks(make(estimator, "accuracy", limit, run_every_secs=None, run_every_steps=1)) == stops
    assert not asks(make(estimator, "accuracy", limit, min_steps=41, run_every_secs=None, run_every_steps=1))
    assert not asks(make(estimator, "recall", limit, run_every_secs=None, run_every_steps=1))


def asks(hook: Any) -> bool:
    """Return whether a hook asks to stop after a step."""
    context = train.SessionRunContext(train.SessionRunArgs(None), None)
    hook.after_run(context, train.SessionRunValues(3, None, None))
    return bool(context.stop_requested)


def test_wrong_calls_of_early_stopping(tiny: Tiny) -> None:
    with pytest.raises(CallError, match="one of run_every_secs and run_every_steps, got 60 and 5"):
        make_early_stopping_hook(tiny(), lambda: True, run_every_steps=5)
    with pytest.raises(CallError, match="expected an estimator as the first argument, got 'model_dir'"):
        make_early_stopping_hook("model_dir", lambda: True)


class Feeding(train.SessionRunHook):
    def before_run(self, run_context: Any) -> Any:
        return train.SessionRunArgs([], {"the_loss:0": 1.0})


class Running(train.SessionRunHook):
    def before_run(self, run_context: Any) -> Any:
        return train.SessionRunArgs(tf.compat.v1.global_variables_initializer())


class Reading(train.SessionRunHook):
    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run("dense/kernel/Read/ReadVariableOp:0")


class Saving(train.SessionRunHook):
    def after_create_session(self, session: Any, coord: Any) -> None:
        session.list_devices()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Feeding, "the hook Feeding cannot run on the CS system. It feeds tensors; provide them by input_fn"),
        (
            Running,
            "the hook Running cannot run on the CS system. It runs '.*'; make that part of the train",
        ),
        (Reading, "the hook Reading asks for 'dense/kernel/Read.*', which is not an output of the step"),
        (Saving, "the hook Saving wants to use Session.list_devices, but on the CS system no session runs"),
        (
            lambda: train.SummarySaverHook(1, summary_op="x", summary_writer=1),
            "SummarySaverHook .*save_summary_steps",
        ),
        (lambda: train.FeedFnHook(dict), "FeedFnHook .*by input_fn"),
        (lambda: train.ProfilerHook(1, output_dir="profile"), "ProfilerHook .*compile_report.html"),
        (lambda: train.FinalOpsHook("x"), "FinalOpsHook .*from the checkpoint"),
        (lambda: train.GlobalStepWaiterHook(3), "GlobalStepWaiterHook .*all tasks start together"),
    ],
)
def test_other_hooks_are_refused_by_name_before_anything_is_compiled(
    tiny: Tiny,
    tiny_input: InputFn,
    named: Any,
    system: RunningSystem,
    make: Callable[[], Any],
    message: str,
) -> None:
    estimator = tiny(model_fn=named, cs_ip=system.address)
    with tf.Graph().as_default():  # a profiler's hook makes a writer of events
        hook = make()
    with pytest.raises(UnsupportedOnCsError, match=message):
        estimator.train(tiny_input, steps=2, hooks=[hook])
    assert not list(Path(estimator.model_dir).glob("cs_*"))


def test_a_hook_that_asks_for_something_new_later_is_told_so(
    tiny: Tiny, tiny_input: InputFn, named: Any, system: RunningSystem
) -> None:
    class Later(train.SessionRunHook):
        steps = 0

        def before_run(self, run_context: Any) -> Any:
            self.steps += 1
            return train.SessionRunArgs("twice:0" if self.steps > 2 else "the_loss:0")

    estimator = tiny(model_fn=named, cs_ip=system.address)
    with pytest.raises(UnsupportedOnCsError, match=r"Later asks for 'twice:0', .* Ask for it there"):
        estimator.train(tiny_input, steps=5, hooks=[Later()])


def test_hooks_of_evaluations_and_predictions_on_the_system(
    tiny: Tiny, tiny_input: InputFn, named: Any, system: RunningSystem
) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = named(features, labels, ModeKeys.EVAL if mode == ModeKeys.TRAIN else mode, params)
        return spec._replace(evaluation_hooks=(own,))

    own, given = Watching(), Watching()
    estimator = tiny(model_fn=model_fn, cs_ip=system.address)
    estimator.evaluate(tiny_input, steps=2, hooks=[given], use_cs=True)
    assert given.losses == own.losses
    assert (len(own.losses), own.steps, own.ended) == (2, [0, 0], True)
    with pytest.raises(UnsupportedOnCsError, match="Watching asks to stop an evaluation"):
        estimator.evaluate(tiny_input, steps=3, hooks=[Watching(stop_at=0)], use_cs=True)


def test_the_page_lists_the_hooks_that_are_refused() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "how-to", "hooks.md").read_text()
    assert all(f"`{name}`" in page for name in _ALTERNATIVES)
