"""The zoo keeps its results, counts each architecture once, and shrinks configurations consistently."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.zoo import __main__ as zoo
from benchmarks.zoo import page
from benchmarks.zoo.architecture import Workload
from benchmarks.zoo.run import Result
from benchmarks.zoo.tiny import Shrinking, shrink
from benchmarks.zoo.torch_training import expected, train_on_cpu
from benchmarks.zoo.training import Difference, Reference, Trained, difference


def _result(name: str, way: str, status: str = "ok", reason: str = "") -> dict[str, Any]:
    return Result("timm", name, way, status, reason, losses=1e-7, updates=0.0, compile_s=1.0).as_dict()


def test_an_architecture_counts_once_however_often_it_was_trained() -> None:
    results = [
        *(_result("one", way) for way in ("workers", "pipelined", "validate")),
        _result("two", "validate"),
        _result("three", "validate", "skipped", "/home/someone/benchmarks/zoo/tiny.py: too large"),
        _result("four", "pipelined", "wrong", "losses differ"),
    ]
    text = " ".join(page.text(results, {"timm": 9}).split())
    assert (
        "* **timm**: 9 architectures, 1 trained with the framework's numbers, 1 only checked, 1 wrong, "
        "1 skipped, 5 not tried"
    ) in text
    assert "| three | benchmarks/zoo/tiny.py: too large |" in text


def test_the_reference_takes_the_first_of_equal_scores() -> None:
    scores = torch.tensor([[1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0] * 4])

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> Any:
        values, places = (scores * batch["x"]).topk(10, -1)
        return places.sum() + values.sum() + 0 * model(batch["x"][:, :1]).sum()

    found = train_on_cpu(Workload(nn.Linear(1, 1), [{"x": torch.ones(1, 32)}], loss, "places"))
    assert found.losses == [2 + 10 + 18 + 26 + 0 + 8 + 16 + 24 + 1 + 3 + 12]


class _Pool:
    """Records requests, finishes the first one, and is then interrupted."""

    asked: Sequence[zoo.Request] = ()

    def __init__(self, waiting: Sequence[zoo.Request], processes: int, limit_s: float, results: Path) -> None:
        _Pool.asked, self._results = waiting, results

    def run(self) -> None:
        if not self.asked:
            return
        with self._results.open("a") as file:
            file.write(json.dumps(_result(self.asked[0].name, self.asked[0].way)) + "\n")
            file.write('{"library": "timm", "na')  # as of a process that was killed
        raise KeyboardInterrupt


def test_a_stopped_run_continues_and_a_fresh_one_starts_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results, written = tmp_path / "models.jsonl", tmp_path / "models.md"
    monkeypatch.setattr(zoo, "Pool", _Pool)
    monkeypatch.setattr(zoo, "ALL_LIBRARIES", ("timm",))
    monkeypatch.setattr(zoo, "models_of", lambda library: SimpleNamespace(names=lambda: ["a", "b", "c"]))

    def run(*arguments: str) -> list[str]:
        files = (f"--results={results}", f"--page={written}", "--way=pipelined")
        monkeypatch.setattr(sys, "argv", ["zoo", *files, *arguments])
        with pytest.raises(SystemExit, match="130"):
            zoo.main()
        return [request.name for request in _Pool.asked]

    assert run() == ["a", "b", "c"]
    assert run() == ["b", "c"]
    assert run("a") == ["a"]  # one that is named runs again
    assert [json.loads(line)["name"] for line in results.read_text().splitlines()] == ["a", "b"]
    assert "2 trained with the framework's numbers, 0 only checked, 1 not tried" in " ".join(
        written.read_text().split()
    )
    assert run("--fresh") == ["a", "b", "c"]
    assert [json.loads(line)["name"] for line in results.read_text().splitlines()] == ["a"]


def test_widths_that_two_fields_share_stay_equal_when_they_shrink() -> None:
    backbone = {"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3]}
    fields = {"backbone_config": backbone, "encoder_in_channels": [512, 1024, 2048], "num_channels": 3}
    whole = Shrinking({}).of_part(fields)
    channels = shrink(fields, whole)["encoder_in_channels"]
    widths = shrink(backbone, whole.of_part(backbone))["hidden_sizes"]
    assert channels == widths[1:]
    assert max(widths) <= 128


def test_the_widths_of_heads_are_no_numbers_of_heads() -> None:
    fields = {
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "head_dim": 64,
    }
    found = shrink(fields, Shrinking({}).of_part(fields))
    assert found["qk_rope_head_dim"] == found["head_dim"] == 8  # the configuration means the rotated part
    assert found["v_head_dim"] == found["qk_nope_head_dim"] + found["qk_rope_head_dim"]
    assert found["num_attention_heads"] == found["num_key_value_heads"] == 4


class NormalizesOne(nn.Module):
    """Divides by the spread of two numbers, which rounding decides; not in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, eps=1e-12)
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(1000.0 + 1e-4 * x * self.weight)
        return found


class Overflows(NormalizesOne):
    """Exceeds all numbers in training mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight / (0.0 if self.training else 1.0)


@pytest.mark.parametrize("model", [NormalizesOne(), Overflows()])
def test_a_model_that_cannot_be_compared_in_training_mode_is_in_evaluation_mode(model: nn.Module) -> None:
    batches = [{"x": torch.tensor([[1.0], [2.0]])} for _ in range(5)]
    weights = torch.tensor([[1.0], [3.0]])
    reference = expected(
        Workload(model, batches, lambda m, batch: (m(batch["x"]) * weights.to(batch["x"].dtype)).sum(), "")
    )
    assert not model.training
    assert not reference.rounding.is_ill_conditioned


def test_a_training_is_as_good_as_the_closer_of_float32_and_float64() -> None:
    first = {"w": np.zeros(2, np.float32)}
    narrow, wide = (Trained([loss], {"w": np.full(2, w)}) for loss, w in ((1.0, 1.0), (1.2, 1.5)))
    rounding = difference(first, narrow, wide)
    assert rounding.is_ill_conditioned
    reference = Reference((narrow, wide), rounding)
    assert reference.difference(first, wide) == Difference(0.0, 0.0, "")
    assert reference.difference(first, Trained([1.0], {"w": np.full(2, 1.1)})).updates == pytest.approx(
        0.1, rel=1e-4
    )
    larger = Difference(0.3, 0.1, "a").or_larger(Difference(0.1, 0.2, "b"))
    assert larger == Difference(0.3, 0.2, "b")
