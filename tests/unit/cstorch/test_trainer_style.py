"""A trainer class whose methods are steps and closures, as programs of release 2.10 have one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import cstorch
from cstorch.distributed import ClusterConfig
from cstorch.utils.data import DataExecutor, DataLoader, Schedule
from tests.systems import RunningSystem

STEPS, EVERY = 6, 3


@pytest.fixture(params=["CSX", "CPU"])
def trainer(
    request: pytest.FixtureRequest, fresh_process: None, system: RunningSystem, tmp_path: Path
) -> Trainer:
    cluster = ClusterConfig(mgmt_address=system.address)
    cstorch.backend(request.param, artifact_dir=tmp_path / "artifacts", cluster_config=cluster)
    return Trainer(tmp_path)


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def data() -> torch.utils.data.DataLoader[Any]:
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
    return torch.utils.data.DataLoader(TensorDataset(x, x[:, :2].argmax(1)), batch_size=4)


class Trainer:
    """Trains in rounds with a validation after each; closures read what steps compute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = cstorch.compile(make_model())
        self.optimizer = cstorch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = cstorch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, 0.01, 10)
        self.global_step = 0
        self.executor: DataExecutor | None = None
        self.losses: list[tuple[int, bool, float]] = []
        self.validations: list[float] = []
        self.saved: list[int] = []

    @property
    def backend(self) -> cstorch.backends.Backend:
        found = cstorch.current_backend()
        assert found is not None
        return found

    def log(self, loss: torch.Tensor) -> None:
        """Log now, or after each step where a step is being recorded."""
        if self.backend.is_tracing:
            self.log_later(loss)
        else:
            assert self.executor is not None
            last = self.executor.on_final_iteration
            self.losses.append((self.executor.user_iteration, last, loss.item()))

    @cstorch.step_closure
    def log_later(self, loss: torch.Tensor) -> None:
        assert not self.backend.is_tracing
        self.log(loss)

    @cstorch.step_closure
    def log_validation(self, loss: torch.Tensor) -> None:
        self.validations.append(loss.item())

    @cstorch.checkpoint_closure
    def save(self) -> None:
        self.saved.append(self.global_step)
        states = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        state: dict[str, Any] = {name: x.state_dict() for name, x in states.items()}
        cstorch.save({**state, "global_step": self.global_step}, self.path(self.global_step))

    def path(self, step: int) -> Path:
        return self.folder / f"checkpoint_{step}.mdl"

    def load(self, step: int) -> None:
        state = cstorch.load(self.path(step))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.global_step = state["global_step"]

    @cstorch.trace
    def training_step(self, batch: Any) -> dict[str, torch.Tensor]:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log(loss)
        loss.backward()
        with cstorch.name_scope("optimizer"):
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return {"loss": loss}

    @cstorch.trace
    @torch.no_grad()
    def validation_step(self, batch: Any, kind: str) -> dict[str, torch.Tensor]:
        assert kind == "validate"
        return {"loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1])}

    def fit(self, steps: int) -> None:
        loader = DataLoader(data)
        self.save()  # no step has run: the values exist
        for _ in range(0, steps, EVERY):
            # Iterations count from 0: the last one of each round.
            at_end = Schedule([Schedule.Range(start=EVERY - 1, step=EVERY, end=EVERY)])
            self.model.train()
            self.executor = DataExecutor(loader, num_steps=EVERY, checkpoint_steps=at_end)
            for batch in self.executor:
                self.training_step(batch)
                self.global_step += 1
                self.save()
            self.validate()

    def validate(self) -> None:
        self.model.eval()
        self.executor = DataExecutor(DataLoader(data), num_steps=2)
        for batch in self.executor:
            outputs = self.validation_step(batch, "validate")
            self.log_validation(outputs["loss"])


def plain() -> Iterator[tuple[str, float]]:
    """The losses of the same rounds only with torch."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [batch for _ in range(2) for batch in data()]
    for step in range(STEPS):
        features, classes = batches[step]
        optimizer.param_groups[0]["lr"] = 0.1 + (0.01 - 0.1) * step / 10
        loss = nn.functional.cross_entropy(model(features), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield "train", loss.item()
        if (step + 1) % EVERY == 0:
            with torch.no_grad():
                for features, classes in batches[:2]:
                    yield "validate", nn.functional.cross_entropy(model(features), classes).item()


def test_a_trainer_class_trains_validates_and_saves(trainer: Trainer) -> None:
    trainer.fit(STEPS)
    expected = list(plain())
    assert [loss for _, _, loss in trainer.losses] == pytest.approx(
        [loss for kind, loss in expected if kind == "train"], rel=1e-4
    )
    assert trainer.validations == pytest.approx(
        [loss for kind, loss in expected if kind == "validate"], rel=1e-4
    )
    assert [(number, last) for number, last, _ in trainer.losses] == [(1, False), (2, False), (3, True)] * 2
    assert trainer.saved == [0, 3, 6]


def test_a_trainer_class_resumes(trainer: Trainer) -> None:
    trainer.fit(STEPS)
    whole = [loss for _, _, loss in trainer.losses]
    trainer.load(3)
    trainer.fit(EVERY)
    assert [loss for _, _, loss in trainer.losses][STEPS:] == whole[3:]
