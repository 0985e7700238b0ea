"""What a program with an estimator hands over to the analyzer."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import input_analyzer.handover
from estimator import CSRunConfig, ModeKeys
from estimator.errors import InputShapeError
from estimator.input import InputSource
from estimator.input_analysis import VARIABLE, hand_over
from input_analyzer import applying
from input_analyzer.examine import examine
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure.link import Order


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
    monkeypatch.setattr(
        input_analyzer.handover, "take_over", lambda program, compiles: programs.append(program)
    )
    hand_over(InputSource(lambda params: input_fn(), ModeKeys.TRAIN, {}, CSRunConfig(), {}), ())
    (program,) = programs
    return program


def order(**more: Any) -> Order:
    return Order(purpose="examine", socket="", stage_seconds=0.0, **more)


def test_sizes_are_mended_before_they_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    program = handed_over(unknown_batch_size, monkeypatch)
    with pytest.raises(InputShapeError):
        examine(program, order(), Silence())  # type: ignore[arg-type]
    found = examine(program, order(apply=True), Silence())  # type: ignore[arg-type]
    assert [component["shape"] for component in found["components"]] == [(32, 5), (32,)]
    assert "drop-remainder-missing" in {finding["id"] for finding in found["findings"]}
    assert "batch(drop_remainder=True)" in found["applied"]
    assert applying.VARIABLE not in os.environ


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


def test_what_would_bring_in_other_records_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    program = handed_over(split_by_order, monkeypatch)
    found = examine(program, order(apply=True), Silence())  # type: ignore[arg-type]
    proved = {finding["id"]: finding["proved"] for finding in found["findings"]}
    assert proved["shuffle-buffer-small"] is proved["shard-missing"] is False
    assert proved["drop-remainder-missing"] is proved["repeat-missing"] is True
    small = next(finding for finding in found["findings"] if finding["id"] == "shuffle-buffer-small")
    assert "; --apply leaves it as it is: take() in" in small["recommended"]
    assert not any("buffer_size" in change for change in found["applied"])
