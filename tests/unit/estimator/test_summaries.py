"""Summaries for TensorBoard other than numbers: the same here and on the CS system."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, EstimatorSpec
from estimator.cs.program import _warn_of_dropped
from estimator.summaries import HISTOGRAM_ELEMENTS
from tests.systems import RunningSystem

Tiny = Callable[..., CerebrasEstimator]
InputFn = Callable[..., Any]
v1 = tf.compat.v1


@pytest.fixture
def shown(tiny_model: Callable[..., EstimatorSpec]) -> Callable[..., EstimatorSpec]:
    """The tiny model with summaries of its batch and its weights."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = tiny_model(features, labels, mode, params)
        v1.summary.histogram("features", features)
        v1.summary.image("batch", tf.reshape(features, [-1, 2, 2, 1]), max_outputs=2)
        large = tf.tile(tf.reshape(features, [1, -1]), [2048, 1])  # 65,536 numbers
        v1.summary.histogram("large", large)
        v1.summary.text("note", tf.constant("made for a test"))
        return spec

    return model_fn


def events(model_dir: str) -> Iterator[Any]:
    for path in Path(model_dir).glob("events.out.tfevents.*"):
        yield from v1.train.summary_iterator(str(path))


def summaries(model_dir: str) -> dict[tuple[str, int], Any]:
    return {(value.tag, event.step): value for event in events(model_dir) for value in event.summary.value}


def test_histograms_and_images_are_those_of_a_session(
    tiny: Tiny, tiny_input: InputFn, shown: Any, system: RunningSystem, tmp_path: Path
) -> None:
    found = {}
    for name, cs_ip in (("cpu", None), ("cs", system.address)):
        estimator = tiny(model_fn=shown, cs_ip=cs_ip, model_dir=tmp_path / name, save_summary_steps=2)
        estimator.train(tiny_input, steps=5)
        found[name] = summaries(estimator.model_dir)
    cpu, cs = found["cpu"], found["cs"]
    assert cpu.keys() == cs.keys()
    assert {step for tag, step in cs if tag == "features"} == {2, 4}
    for step in (2, 4):
        assert cs["features", step].histo == cpu["features", step].histo
        assert cs["batch/image/1", step].image == cpu["batch/image/1", step].image
        large, whole = cs["large", step].histo, cpu["large", step].histo
        assert whole.num == 65_536
        assert HISTOGRAM_ELEMENTS / 2 < large.num <= HISTOGRAM_ELEMENTS
        assert (large.min, large.max) == (whole.min, whole.max)
        note = tf.make_ndarray(cs["note", step].tensor)
        assert note == b"made for a test"


def test_the_graph_is_written_once(
    tiny: Tiny, tiny_input: InputFn, system: RunningSystem, tmp_path: Path
) -> None:
    for name, cs_ip in (("cpu", None), ("cs", system.address)):
        for steps in (2, 2):
            tiny(cs_ip=cs_ip, model_dir=tmp_path / name).train(tiny_input, steps=steps)
        graphs = [event.graph_def for event in events(str(tmp_path / name)) if event.graph_def]
        assert len(graphs) == 1
        assert "dense/kernel" in {node.name for node in tf.compat.v1.GraphDef.FromString(graphs[0]).node}


def test_summaries_that_the_system_cannot_compute_are_named_and_left_out(
    tiny: Tiny,
    tiny_input: InputFn,
    tiny_model: Callable[..., EstimatorSpec],
    system: RunningSystem,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = tiny_model(features, labels, mode, params)
        drawn = tf.numpy_function(lambda x: np.zeros((1, 4, 4, 3), np.float32), [features], tf.float32)
        drawn.set_shape([1, 4, 4, 3])
        v1.summary.image("confusion", drawn)
        v1.summary.text("classes", tf.strings.as_string(labels))
        v1.summary.histogram("features", features)
        return spec

    estimator = tiny(model_fn=model_fn, cs_ip=system.address, save_summary_steps=1)
    with caplog.at_level(logging.WARNING):
        estimator.train(tiny_input, steps=1)
    assert "the CS system cannot compute the summaries confusion: they are not written" in caplog.text
    assert "known on a host only: the summaries classes" in caplog.text
    assert {tag for tag, _ in summaries(estimator.model_dir)} >= {"features", "loss", "doubled_loss"}


def test_without_summary_steps_nothing_is_put_out_for_them(
    tiny: Tiny, tiny_input: InputFn, shown: Any, tmp_path: Path
) -> None:
    for every, outputs in ((None, 0), (10, 3)):
        estimator = tiny(model_fn=shown, model_dir=tmp_path / str(every), save_summary_steps=every)
        estimator.compile(tiny_input)
        [text] = [path.read_text() for path in Path(estimator.model_dir).glob("cs_*/cirh.mlir")]
        assert text.count("output_shown/") == outputs


def test_what_a_step_leaves_out_is_named_once_with_its_line(
    tiny: Tiny,
    tiny_input: InputFn,
    tiny_model: Callable[..., EstimatorSpec],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Checks in TensorFlow's own functions, such as metrics, are not the user's."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        features = v1.Print(features, [features], "printed")
        features = tf.debugging.check_numerics(features, "checked")
        checks = [v1.assert_less(labels, 3), tf.print("labels", labels)]
        with tf.control_dependencies([*checks, tf.Assert(tf.reduce_all(labels >= 0), [labels])]):
            features = tf.identity(features)
        v1.losses.compute_weighted_loss(features, features)
        return tiny_model(features, labels, mode, params)

    _warn_of_dropped.cache_clear()
    first = model_fn.__code__.co_firstlineno
    estimator = tiny(model_fn=model_fn)
    for _ in range(2):
        estimator.compile(tiny_input, validate_only=True)
    omitted = [r.getMessage() for r in caplog.records if "is omitted on the CS system" in r.getMessage()]
    expected = {
        ("tf.compat.v1.Print", first + 1),
        ("check_numerics", first + 2),
        ("an assert", first + 3),
        ("tf.print", first + 3),
        ("an assert", first + 4),
    }
    assert {text.split(" is omitted")[0] for text in omitted} == {
        f"{what} at {__file__}:{line}" for what, line in expected
    }
    assert len(omitted) == len(expected)


def test_weights_of_streamed_layers_are_shown_too(
    tiny: Tiny,
    tiny_input: InputFn,
    tiny_model: Callable[..., EstimatorSpec],
    system: RunningSystem,
    tmp_path: Path,
) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = tiny_model(features, labels, mode, params)
        v1.summary.histogram("kernel", v1.trainable_variables()[0])
        return spec

    found = {}
    for execution in ("pipelined", "weight_streaming"):
        estimator = tiny(
            model_fn=model_fn,
            cs_ip=system.address,
            execution=execution,
            save_summary_steps=2,
            model_dir=tmp_path / execution,
        )
        estimator.train(tiny_input, steps=3)
        found[execution] = summaries(estimator.model_dir)["kernel", 2].histo.sum
    assert found["weight_streaming"] == pytest.approx(found["pipelined"], rel=1e-5)
