"""The benchmark of checkpoints in a training run compares the rates of both runs of a round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import training_checkpoints


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    @contextmanager
    def system() -> Iterator[str]:
        yield "127.0.0.1:1"

    def rate(address: str, model: str, steps: int, every: int) -> float:
        calls.append((model, every))
        return 100.0 if every == steps else 94.0 if model == "bert/tf" else 96.0

    monkeypatch.setattr(training_checkpoints, "cs_system", system)
    monkeypatch.setattr(training_checkpoints, "_rate", rate)
    monkeypatch.setattr(training_checkpoints, "_measure_plain", lambda model: (12.3, 0.914))
    rows = training_checkpoints.rows(steps=1000, rounds=3)
    assert [row.name.split(",")[0] for row in rows] == [f"training {m}" for m in training_checkpoints.MODELS]
    assert [row.met for row in rows] == [True, False, True, True]
    # 100 steps of 256 samples: 256 s with one at the end
    assert rows[0].ours == "96 samples/s, 10667 ms a checkpoint"
    assert rows[0].others == "one at the end 100 samples/s; TensorFlow 12 ms (0.91)"
    assert sorted(calls[1:7]) == [("fc_mnist/tf", 100)] * 3 + [("fc_mnist/tf", 1000)] * 3
