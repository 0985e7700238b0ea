"""What a program with an estimator hands over to the analyzer."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CSRunConfig, ModeKeys
from estimator.errors import InputShapeError
from estimator.input import InputSource
from estimator.input_analysis import hand_over
from input_analyzer.examine import examine
from input_analyzer.measure.link import Order
from input_rules.input_export import VARIABLE, InputProgram, Shard


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
    monkeypatch.setenv(VARIABLE, "order.json")
    taken = lambda program, compiles: programs.append(program)  # noqa: E731
    monkeypatch.setattr("estimator.input_analysis.take_over", taken)
    hand_over(InputSource(lambda params: input_fn(), ModeKeys.TRAIN, {}, CSRunConfig(), {}), ())
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


def test_findings_are_told_of_an_input_that_no_run_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
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
