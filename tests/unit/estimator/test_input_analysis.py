"""The input that a program with an estimator passes to the analyzer."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CSRunConfig, ModeKeys
from estimator.errors import InputShapeError
from estimator.input.analysis import export_to_analyzer
from estimator.input.dataset import InputSource
from input_analyzer.measure.examine import examine
from input_analyzer.measure.link import Order
from input_rules.input_export import ORDER_VARIABLE, InputProgram, Shard


class Silence:
    def send(self, **message: Any) -> None:
        """Nobody listens."""


def unknown_batch_size() -> Any:
    rows = tf.data.Dataset.from_tensor_slices((np.zeros((400, 5), np.float32), np.arange(400)))
    return rows.shuffle(300, seed=1).batch(32)


def numbers_of_worker() -> Any:
    def generate() -> Any:
        yield len(os.environ["TF_CONFIG"])

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32)).batch(1)


def handed_over(input_fn: Any, monkeypatch: pytest.MonkeyPatch) -> InputProgram:
    programs: list[InputProgram] = []
    monkeypatch.setenv(ORDER_VARIABLE, "order.json")
    taken = lambda program, compiles: programs.append(program)  # noqa: E731
    monkeypatch.setattr("cs_runtime.input_source.export_input", taken)
    export_to_analyzer(InputSource(lambda params: input_fn(), ModeKeys.TRAIN, {}, CSRunConfig(), {}), ())
    (program,) = programs
    return program


def order(**more: Any) -> Order:
    return Order(purpose="examine", socket="", stage_seconds=0.0, **more)


def test_a_worker_finds_its_own_configuration_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    program = handed_over(numbers_of_worker, monkeypatch)
    with program.role(Shard(2, 1)):
        assert '"index": 1' in os.environ["TF_CONFIG"]
        ((length,),) = program.batches(Shard(2, 1))
        assert length == len(os.environ["TF_CONFIG"])
    assert "TF_CONFIG" not in os.environ


def split_by_order() -> Any:
    rows = tf.data.Dataset.range(1000).shuffle(20, seed=1, reshuffle_each_iteration=False).take(800)
    return rows.map(lambda x: (x, x)).batch(16)


def test_findings_are_reported_for_an_input_that_no_run_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    program = handed_over(unknown_batch_size, monkeypatch)
    with pytest.raises(InputShapeError):
        examine(program, order(), Silence())  # type: ignore[arg-type]
    found = examine(program, order(source_only=True), Silence())  # type: ignore[arg-type]
    assert "drop-remainder-missing" in {finding["id"] for finding in found["findings"]}


def test_what_would_bring_in_other_records_is_left_to_the_author(monkeypatch: pytest.MonkeyPatch) -> None:
    program = handed_over(split_by_order, monkeypatch)
    found = examine(program, order(source_only=True), Silence())  # type: ignore[arg-type]
    reasons = {finding["id"]: finding["by_hand"] for finding in found["findings"]}
    assert reasons["shuffle-buffer-small"].startswith("take() in ")
    assert reasons["drop-remainder-missing"] is reasons["repeat-missing"] is None


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
    caplog.set_level(logging.INFO, "cs_runtime")
    tiny().train(careless(tiny_input), steps=1)
    found = report(caplog)
    assert found[0][1].startswith("---------- Input Function Report: ")
    levels = {level for level, text in found if "prefetch-missing" in text}
    assert levels == {logging.WARNING}
    (line,) = [
        t for _, t in found if t.startswith("[input_fn] prefetch-missing - ") and "recommended" not in t
    ]
    assert "test_input_analysis.py:" in line
    # One process reads all of it: nothing is said of shards.
    assert not [text for _, text in found if "shard" in text]


def test_compiling_reports_before_the_compiler_does(
    tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    tiny().compile(careless(tiny_input), validate_only=True)
    assert [text for level, text in report(caplog) if "shard-missing" in text and level == logging.WARNING]


def test_inputs_that_are_no_datasets_have_no_report(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")

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
    monkeypatch.setattr("estimator.cpu.log_report", lambda source, shared: None)
    plain = calls()
    assert len(reported) > len(plain) > 0, "the report has not called it"
    assert reported[-len(plain) :] == plain, "the numbers of the run itself"


def test_an_analysis_sets_slurms_variables_of_a_worker(
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

    caplog.set_level(logging.INFO, "cs_runtime")
    tiny().compile(input_fn, validate_only=True)
    assert report(caplog)
    assert not [text for _, text in report(caplog) if "shard-missing" in text]
    assert os.environ["SLURM_PROCID"] == "0"
