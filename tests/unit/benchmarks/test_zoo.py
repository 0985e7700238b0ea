"""The page of the zoo counts each architecture once, and its reference chooses the first of equal scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.zoo import page
from benchmarks.zoo.architecture import Workload
from benchmarks.zoo.run import Result
from benchmarks.zoo.torch_training import train_on_cpu


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
