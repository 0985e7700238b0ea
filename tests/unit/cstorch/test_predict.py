"""Outputs of models from the CS system with one call; weights from and to files of `torch.save`."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import cstorch
from cstorch import predict
from cstorch.errors import InputError
from cstorch.program import Program
from tests.systems import RunningSystem

CLASSES, FEATURES, BATCH = 3, 6, 8


@pytest.fixture(autouse=True)
def configured(fresh_process: None, system: RunningSystem, tmp_path: Path) -> None:
    cstorch.configure(model_dir=tmp_path, mgmt_address=system.address, seed=1)


class Net(nn.Module):
    """Returns a dict, of which one entry has no samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.fc, self.drop = (
            nn.BatchNorm1d(FEATURES),
            nn.Linear(FEATURES, CLASSES),
            nn.Dropout(0.5),
        )
        self.norm.running_mean.fill_(0.3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.fc(self.drop(self.norm(x)))
        logits = logits if scale is None else logits * scale[:, None]
        return {"logits": logits, "classes": logits.argmax(1), "bias": self.fc.bias.sum()}


def _expected(model: Net, *args: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        found: dict[str, torch.Tensor] = model.eval()(*args)
    return found


def _assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is torch.Tensor
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_one_batch_in_each_nest(tmp_path: Path) -> None:
    model, x, scale = Net(), torch.randn(BATCH, FEATURES), torch.rand(BATCH)
    eager = copy.deepcopy(model)
    plain, scaled = _expected(eager, x), _expected(eager, x, scale)
    model.train()
    _assert_same(predict(model, x), plain)
    assert model.training
    assert model.drop.training
    _assert_same(predict(model, (x, scale)), scaled)
    _assert_same(predict(model, {"x": x, "scale": scale}), scaled)
    _assert_same(predict(model, x[:2]), {**_expected(eager, x[:2])})
    compiled_programs = set(tmp_path.glob("cs_*"))
    _assert_same(predict(model, x + 1), _expected(eager, x + 1))
    assert set(tmp_path.glob("cs_*")) == compiled_programs


def test_many_batches_of_which_the_last_one_is_smaller() -> None:
    model, x = Net(), torch.randn(2 * BATCH + 3, FEATURES)
    expected = _expected(copy.deepcopy(model), x)["logits"]
    loader = torch.utils.data.DataLoader(TensorDataset(x), batch_size=BATCH)
    for data in (loader, [(part,) for part in x.split(BATCH)], iter(x.split(BATCH))):
        found = list(predict(model, data))
        assert [len(outputs["logits"]) for outputs in found] == [BATCH, BATCH, 3]
        torch.testing.assert_close(torch.cat([outputs["logits"] for outputs in found]), expected)
    dropping = torch.utils.data.DataLoader(TensorDataset(x), batch_size=BATCH, drop_last=True)
    assert len(list(predict(model, dropping))) == 2
    ours = cstorch.utils.data.DataLoader(lambda: dropping)
    torch.testing.assert_close(
        torch.cat([outputs["logits"] for outputs in predict(model, ours)]), expected[: 2 * BATCH]
    )


def test_state_dicts_go_into_a_compiled_model_and_back(tmp_path: Path) -> None:
    saved, x = Net(), torch.randn(BATCH, FEATURES)
    nn.init.normal_(saved.fc.weight)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    expected = _expected(saved, x)
    before, after = Net(), Net()
    before.load_state_dict(torch.load(tmp_path / "weights.pt"))
    cstorch.compile(before)
    cstorch.compile(after)
    after.load_state_dict(torch.load(tmp_path / "weights.pt", map_location="cpu"))
    Program.current().models.remove(before)
    _assert_same(predict(after, x), expected)
    torch.save(after.state_dict(), tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt")
    for name, value in saved.state_dict().items():
        assert type(again[name]) is torch.Tensor
        torch.testing.assert_close(again[name], value)
    other = nn.Linear(FEATURES, CLASSES + 1).state_dict()
    with pytest.raises(RuntimeError, match="Missing key"):
        after.load_state_dict(other)
    with pytest.raises(RuntimeError, match="size mismatch"):
        after.fc.load_state_dict(other)


@pytest.mark.parametrize(
    ("data", "got"), [([], "no batch"), ({"x": 3}, "a dict without"), ([("a",)], "a tuple")]
)
def test_data_that_is_none(data: object, got: str) -> None:
    with pytest.raises(InputError, match=f"{got}.*, expected"):
        predict(Net(), data) if isinstance(data, dict) else list(predict(Net(), data) or ())
