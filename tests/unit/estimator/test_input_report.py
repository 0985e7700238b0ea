"""The Input Function Report in the log of a run, and inputs that are mended for it."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator.input import InputSource, describe, read
from estimator.run_config import CSRunConfig
from input_analyzer import applying

Tiny = Callable[..., Any]
InputFn = Callable[..., Any]


def report(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    records = [(record.levelno, record.getMessage()) for record in caplog.records]
    return [(level, text) for level, text in records if "nput_fn]" in text or "Input Function Report" in text]


def careless(tiny_input: InputFn) -> InputFn:
    def input_fn(params: Any, mode: str) -> Any:
        return tiny_input(params, mode).map(lambda x, y: (x + 1.0, y))

    return input_fn


def test_training_on_this_cpu_reports(
    tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "estimator")
    tiny().train(careless(tiny_input), steps=1)
    found = report(caplog)
    assert found[0][1].startswith("---------- Input Function Report: ")
    levels = {level for level, text in found if "prefetch-missing" in text}
    assert levels == {logging.WARNING}
    (line,) = [
        t for _, t in found if t.startswith("[input_fn] prefetch-missing - ") and "recommended" not in t
    ]
    assert "test_input_report.py:" in line
    # One process reads all of it: nothing is said of shards.
    assert not [text for _, text in found if "shard" in text]


def test_compiling_reports_before_the_compiler_does(
    tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "estimator")
    tiny().compile(careless(tiny_input), validate_only=True)
    assert [text for level, text in report(caplog) if "shard-missing" in text and level == logging.WARNING]


def test_inputs_that_are_no_datasets_have_no_report(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "estimator")

    def failing() -> Any:
        raise RuntimeError("no data today")

    with pytest.raises(RuntimeError, match="no data today"):
        tiny().train(failing, steps=1)
    assert report(caplog) == []


def test_the_report_changes_no_batch(
    tiny: Tiny, tiny_input: InputFn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calls() -> list[tuple[float, float]]:
        drawn = []

        def input_fn(params: Any, mode: str) -> Any:
            drawn.append((random.random(), np.random.random()))
            return tiny_input(params, mode)

        random.seed(3)
        np.random.seed(3)
        tiny().train(input_fn, steps=1)
        return drawn

    reported = calls()
    monkeypatch.setattr("estimator.cs_estimator.log_report", lambda source, shared: None)
    plain = calls()
    assert len(reported) > len(plain) > 0, "the report has not called it"
    assert reported[-len(plain) :] == plain, "the numbers of the run itself"


def test_what_is_ordered_is_mended(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def input_fn() -> Any:
        return tf.data.Dataset.range(10).batch(2)

    def source(shard: int) -> InputSource:
        return InputSource(input_fn, "train", {}, CSRunConfig(), {}, 2, shard)

    whole = [int(x) for (batch,) in read(source(0), 1, 0) for x in batch]
    assert whole == list(range(10))
    for name, value in applying.order({"shard-missing", "drop-remainder-missing"}).items():
        monkeypatch.setenv(name, value)
    shards = [[int(x) for (batch,) in read(source(index), 1, 0) for x in batch] for index in (0, 1)]
    assert shards == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert describe(source(0)).components[0].shape == (2,)

    caplog.set_level(logging.INFO, "estimator")
    monkeypatch.setenv(applying.VARIABLE, "shard-missing,shard-mising")
    taken = InputSource(lambda: input_fn().take(1), "train", {}, CSRunConfig(), {}, 2, 0)
    for source_ in (source(1), taken, taken):
        next(read(source_, 1, 0))
    told = [record.message for record in caplog.records if applying.VARIABLE in record.message]
    assert any("mended in the input: shard(2, 1) behind range()" in text for text in told)
    assert any("shard-missing is left as it is: " in text for text in told)
    assert any("shard-mising: no finding" in text for text in told)
    assert len(told) == 5, "what is the same is told once"


def test_what_slurm_tells_a_worker_is_told_too(
    tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may shard by the number that Slurm gives its task."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")

    def input_fn(params: Any, mode: str) -> Any:
        workers, number = max(int(os.environ["SLURM_NTASKS"]) - 1, 1), int(os.environ["SLURM_PROCID"])
        mine = np.arange(4096, dtype=np.int32)[max(number - 1, 0) :: workers]  # the first task is the chief
        records = tf.data.Dataset.from_tensor_slices(mine)
        return records.map(lambda n: (tf.fill([4], tf.cast(n, tf.float32)), n % 2)).batch(8, True)

    caplog.set_level(logging.INFO, "estimator")
    tiny().compile(input_fn, validate_only=True)
    assert report(caplog)
    assert not [text for _, text in report(caplog) if "shard-missing" in text]
    assert os.environ["SLURM_PROCID"] == "0"
