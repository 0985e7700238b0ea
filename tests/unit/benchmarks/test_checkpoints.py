"""The benchmark of checkpoints measures two kinds, and judges against PyTorch."""

from __future__ import annotations

import pytest

from benchmarks import checkpoints


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "ROUNDS", 1)
    rows = checkpoints.rows(mib=1, training_mib=2)
    assert [row.name.rsplit(", ")[-1] for row in rows] == ["saved", "loaded"] * 2
    for row in rows:
        assert row.ours.startswith("cstorch ")
        assert "torch " in row.others
        assert "safetensors " in row.others
        assert row.met == (row.ratio is not None and row.ratio >= 1)


def test_the_state_of_a_training_has_the_size_that_was_asked_for() -> None:
    weights = checkpoints._training(8)
    assert len(weights) == 740
    assert sum(tensor.nbytes for tensor in weights.values()) == pytest.approx(8 * 2**20, rel=0.05)
