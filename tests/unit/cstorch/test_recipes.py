"""Whole recipes on a CS system, for the networks of the examples: as eager PyTorch, and as without a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import cstorch
from cstorch.optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from cstorch.program import Program
from cstorch.tracing.state import continue_at
from cstorch.utils.data import DataLoader
from models.bert.pytorch.data import train_dataloader as masked_text
from models.bert.pytorch.model import Bert
from models.fc_mnist.pytorch.data import train_dataloader as digits
from models.fc_mnist.pytorch.model import FcMnist
from models.gpt2.pytorch.data import train_dataloader as text
from models.resnet.pytorch.data import train_dataloader as images
from models.resnet.pytorch.model import ResNet
from tests.programs.pytorch.language_models import GPT2Loss
from tests.systems import RunningSystem

MODELS = Path(__file__).parents[3] / "models"
STEPS, STOP = 20, 12
SPIKES = (3, 4, 14)
"""Steps whose gradients overflow."""
SMALL_TEXT = {"batch_size": 4, "max_sequence_length": 16}
SMALL_TRANSFORMER = {
    "hidden_size": 32,
    "filter_size": 64,
    "max_position_embeddings": 16,
    "num_hidden_layers": 1,
}


@dataclass(frozen=True)
class Family:
    """A network of the examples, made small."""

    file: str
    model: Callable[[dict[str, Any]], nn.Module]
    data: Callable[[dict[str, Any]], Any]
    changes: dict[str, dict[str, Any]]
    dropout: str | None = "dropout_rate"

    def params(self, dropout: float) -> dict[str, Any]:
        params = yaml.safe_load((MODELS / self.file).read_text())
        for group, values in self.changes.items():
            params[group].update(values)
        if self.dropout is not None:
            params["model"][self.dropout] = dropout
        return params


FAMILIES = {
    "mlp": Family(
        "fc_mnist/pytorch/configs/params_fc_mnist.yaml",
        FcMnist,
        digits,
        {"model": {"hidden_sizes": [32, 16]}, "train_input": {"batch_size": 16}},
        "dropout",
    ),
    "cnn": Family(
        "resnet/pytorch/configs/params_resnet_tiny.yaml",
        ResNet,
        images,
        {"model": {"filters": [4, 8], "blocks": [1, 1]}, "train_input": {"batch_size": 8}},
        None,
    ),
    "gpt": Family(
        "gpt2/pytorch/configs/params_gpt2_tiny.yaml",
        GPT2Loss,
        text,
        {"model": SMALL_TRANSFORMER, "train_input": SMALL_TEXT},
    ),
    "bert": Family(
        "bert/pytorch/configs/params_bert_tiny.yaml",
        Bert,
        masked_text,
        {"model": SMALL_TRANSFORMER, "train_input": SMALL_TEXT},
    ),
}


class Spiked(nn.Module):
    """The loss of a network; in some steps a multiple, of which the scaled gradients are inf."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("count", torch.zeros(()))

    def forward(self, batch: Any) -> torch.Tensor:
        self.count += 1
        spiked = torch.stack([self.count == number for number in SPIKES]).any()
        return self.network(batch) * torch.where(spiked, 1e25, 1.0)


class Recipe:
    """AdamW with warm-up and decay, clipping, and a dynamic loss scale that some steps overflow."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        groups = cstorch.optim.configure_param_groups(model, {"weight_decay": 0.1})
        self.optimizer = cstorch.optim.AdamW(groups, lr=1e-3)
        phases = [LinearLR(self.optimizer, 1e-4, 2e-3, 5), CosineDecayLR(self.optimizer, 2e-3, 1e-4, STEPS)]
        self.schedule = SequentialLR(self.optimizer, phases, [5])
        self.scaler = cstorch.amp.GradScaler(
            "dynamic",
            init_scale=2.0**64,
            max_loss_scale=2.0**80,
            steps_per_increase=4,
            overflow_tolerance=0.0,
        )

    def step(self, batch: Any) -> torch.Tensor:
        loss = self.model(batch)
        cstorch.amp.optimizer_step(loss, self.optimizer, self.scaler, max_gradient_norm=1.0)
        self.schedule.step()
        return loss.detach()

    def parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "schedule", "scaler")
        return {name: getattr(self, name) for name in names}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of a step share one compilation."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(autouse=True)
def _process(system: RunningSystem, artifacts: Path, tmp_path: Path) -> Iterator[None]:
    Program.reset()
    cstorch.configure(tmp_path, artifacts, checkpoint_steps=STOP, mgmt_address=system.address, seed=1)
    yield
    Program.reset()


@pytest.fixture(params=["mlp", "cnn", "gpt", pytest.param("bert", marks=pytest.mark.soak)])
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def new_model(family: Family, dropout: float) -> nn.Module:
    torch.manual_seed(1)
    return family.model(family.params(dropout))


def trained(family: Family, dropout: float, path: Path, steps: int = STEPS) -> list[float]:
    """Return the losses of a training run on the system, which resumes from an existing checkpoint.

    Otherwise it writes one after the step `STOP`.
    """
    Program.current().models.clear()
    continue_at(0)
    recipe = Recipe(cstorch.compile(Spiked(new_model(family, dropout))))
    goes_on = path.exists()
    if goes_on:
        state = cstorch.load(path)
        for name, part in recipe.parts().items():
            part.load_state_dict(state[name])
    losses: list[float] = []
    step = cstorch.compile_step(recipe.step)

    @cstorch.step_closure
    def note(loss: torch.Tensor) -> None:
        losses.append(loss.item())
        if len(losses) == STOP and not goes_on:
            cstorch.save({name: part.state_dict() for name, part in recipe.parts().items()}, path)

    for batch in DataLoader(family.data, family.params(dropout), num_steps=steps):
        note(step(batch))
    return losses


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[float], Path]]:
    """Losses and checkpoints of families without dropout, which serve two tests."""
    return {}


def test_twenty_steps_are_those_of_eager_pytorch(
    family: Family, tmp_path: Path, checkpoints: dict[str, tuple[list[float], Path]]
) -> None:
    found = trained(family, 0.0, tmp_path / "stop.mdl")
    if family.dropout is None:
        checkpoints[family.file] = found, tmp_path / "stop.mdl"
    Program.current().models.clear()
    recipe = Recipe(Spiked(new_model(family, 0.0)))
    batches = iter(family.data(family.params(0.0)))
    expected = [recipe.step(next(batches)).item() for _ in range(STEPS)]
    assert found == pytest.approx(expected, rel=1e-5)
    assert int(recipe.scaler.num_skipped_steps) == len(SPIKES)
    assert expected[-1] < expected[0]


def test_a_training_that_continues_is_one_without_a_stop(
    family: Family, tmp_path: Path, checkpoints: dict[str, tuple[list[float], Path]]
) -> None:
    """Bit for bit: parameters, moments, moving averages, schedule, scale, and the masks of dropout."""
    whole, path = checkpoints.get(family.file) or ([], tmp_path / "stop.mdl")
    whole = whole or trained(family, 0.2, path)
    assert trained(family, 0.2, path, STEPS - STOP) == whole[STOP:]


def test_metrics_of_an_evaluation_are_those_of_a_direct_computation() -> None:
    """Accuracy by label weights (BERT), in a separate model; loss and count of batches."""
    family, batches = FAMILIES["bert"], 5
    eager = new_model(family, 0.2).eval()
    model = cstorch.compile(deepcopy(eager))
    losses: list[float] = []
    step = cstorch.compile_step(model.forward)
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    params = family.params(0.2)
    with torch.no_grad():
        for batch in DataLoader(family.data, params, num_steps=batches):
            note(step(batch))
        expected, right, asked = [], 0, 0
        for _, batch in zip(range(batches), family.data(params), strict=False):
            expected.append(eager(batch).item())
            ids, labels = batch
            masked = labels >= 0
            right += int((eager._logits(ids).argmax(-1) == labels)[masked].sum())
            asked += int(masked.sum())
    assert losses == pytest.approx(expected, rel=1e-5)
    assert float(model.accuracy) == pytest.approx(right / asked, rel=1e-6)
    assert model.accuracy.num_updates == batches
