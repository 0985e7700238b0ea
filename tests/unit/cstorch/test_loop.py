"""A program's own loop on a CS system: what it trains to, what it may read, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import cstorch
from cs_system.testing import RunningSystem, running_system
from cstorch import compiled, config, loop
from cstorch.amp import GradScaler, optimizer_step
from cstorch.errors import (
    ClosureError,
    CompileCallError,
    ConfigureError,
    InputError,
    StateNotThereError,
    StepError,
    TensorReadError,
)
from cstorch.metrics import AccuracyMetric
from cstorch.optim.lr_scheduler import CosineDecayLR
from cstorch.utils.data import DataLoader

STEPS, FEATURES, CLASSES, BATCH = 25, 6, 4, 16


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with running_system(tmp_path_factory.mktemp("system")) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if no test before had configured this process."""
    monkeypatch.setattr(config, "_configured", [])
    monkeypatch.setattr(loop, "_first_step", [0])
    compiled.models.clear()
    yield
    compiled.models.clear()


Configure = Callable[..., None]


@pytest.fixture
def configure(system: RunningSystem, tmp_path: Path) -> Configure:
    def call(**settings: Any) -> None:
        cstorch.configure(**{"model_dir": tmp_path, "mgmt_address": system.address, "seed": 1, **settings})

    return call


def data(count: int = 512) -> torch.utils.data.DataLoader:
    """Features, and the largest of some of them as class."""
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(3))
    return torch.utils.data.DataLoader(
        TensorDataset(x, x[:, :CLASSES].argmax(1)), batch_size=BATCH, drop_last=True
    )


def new_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))


def train_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step of gradient descent with clipping."""
    loss = functional.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.1 * parameter.grad)
    return loss.detach()


def total(model: nn.Module) -> float:
    """A number that says what state a model has."""
    return float(sum(value.double().abs().sum() for value in model.state_dict().values()))


def run(step: Callable[[Any], Any], loader: DataLoader) -> None:
    """A loop that does nothing beside the steps."""
    for batch in loader:
        step(batch)


def by_torch() -> tuple[list[float], dict[int, float], nn.Module]:
    """Losses, the state after some steps, and the trained model."""
    model, losses, states = new_model(), [], {}
    batches = iter(data())
    for step in range(1, STEPS + 1):
        losses.append(train_step(model, *next(batches)).item())
        states[step] = total(model)
    return losses, states, model


def test_a_loop_trains_to_eagers_numbers_and_reads_the_state_where_it_may(configure: Configure) -> None:
    configure(checkpoint_steps=10)
    model = cstorch.compile(new_model())
    assert model.backend.is_wse()
    losses: list[float] = []
    inside: list[float] = []
    states: dict[int, float] = {}

    @cstorch.step_closure
    def show(loss: torch.Tensor) -> None:
        inside.append(loss.item())

    @cstorch.compile_step
    def step(batch: Any) -> torch.Tensor:
        loss = train_step(model, *batch)
        show(loss * 2)
        return loss

    @cstorch.step_closure
    def note(loss: torch.Tensor) -> None:
        losses.append(loss.item())

    @cstorch.step_closure
    def save(number: int) -> None:
        states[number] = total(model)

    for i, batch in enumerate(DataLoader(data, num_steps=STEPS), start=1):
        loss = step(batch)
        note(loss)
        if i in (1, 10, 20):
            save(i)
        if i == 5:
            with pytest.raises(StateNotThereError, match=r"after step 5, .*every 10 steps"):
                save(i)
    expected, expected_states, trained = by_torch()
    assert losses == pytest.approx(expected, rel=1e-6)
    assert inside == pytest.approx([2 * loss for loss in expected], rel=1e-6)
    assert states == pytest.approx({step: expected_states[step] for step in (1, 10, 20)}, rel=1e-6)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value.cpu(), trained.state_dict()[name], rtol=1e-5, atol=1e-6)
    fresh = new_model()
    fresh.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    assert total(fresh) == pytest.approx(total(trained), rel=1e-6)


def test_an_evaluation_changes_nothing_and_goes_on_over_the_end_of_an_epoch(configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model().eval())
    found: list[float] = []

    @cstorch.compile_step
    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(x)
        return functional.cross_entropy(logits, y), (logits.argmax(-1) == y).float().mean()

    @cstorch.step_closure
    def note(loss: torch.Tensor, accuracy: torch.Tensor) -> None:
        found.append(loss.item() + accuracy.item())

    with torch.no_grad():
        for x, y in DataLoader(data, 64, num_epochs=2):
            note(*step(x, y))
    eager = new_model().eval()
    expected = []
    with torch.no_grad():
        for x, y in [*data(64), *data(64)]:
            logits = eager(x)
            accuracy = (logits.argmax(-1) == y).float().mean()
            expected.append((functional.cross_entropy(logits, y) + accuracy).item())
    assert found == pytest.approx(expected, rel=1e-6)
    assert total(model) == pytest.approx(total(eager), rel=1e-12)


class Recipe:
    """AdamW with a schedule, clipping and a dynamic loss scale that overflows at first."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = cstorch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        self.schedule = CosineDecayLR(self.optimizer, 1e-2, 1e-3, 20)
        self.scaler = GradScaler("dynamic", init_scale=2.0**15, steps_per_increase=5, overflow_tolerance=0.0)

    def step(self, batch: Any) -> torch.Tensor:
        x, y = batch
        loss = functional.cross_entropy(self.model(x), y)
        optimizer_step(loss, self.optimizer, self.scaler, max_gradient_norm=1.0)
        self.schedule.step()
        return loss

    def state(self) -> dict[str, Any]:
        parts = {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        return {"model": self.model.state_dict(), **{name: part.state_dict() for name, part in parts.items()}}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])


def run_recipe(recipe: Recipe, steps: int, path: Path | None = None) -> list[float]:
    """Losses; the state behind the last step goes into a checkpoint."""
    losses: list[float] = []
    step = cstorch.compile_step(recipe.step)
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    for batch in DataLoader(data, num_steps=steps):
        note(step(batch))
    if path is not None:
        cstorch.save(recipe.state(), path)
    return losses


def test_the_whole_recipe_equals_eager(configure: Configure) -> None:
    """Optimizer, schedule, clipping and dynamic scale: 20 steps."""
    configure()
    found = run_recipe(Recipe(cstorch.compile(new_model())), 20)
    compiled.models.clear()
    eager = Recipe(new_model())
    batches = iter(data())
    expected = [eager.step(next(batches)).item() for _ in range(20)]
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < 0.8 * expected[0]


def test_a_run_that_continues_equals_one_without_a_stop(configure: Configure, tmp_path: Path) -> None:
    """Bit for bit, dropout included."""

    def dropping() -> nn.Module:
        return nn.Sequential(new_model(), nn.Dropout(0.3), nn.Linear(CLASSES, CLASSES))

    configure()
    torch.manual_seed(5)
    whole = run_recipe(Recipe(cstorch.compile(dropping())), 12)
    for steps in (7, 5):
        compiled.models.clear()
        torch.manual_seed(5)
        recipe = Recipe(cstorch.compile(dropping()))
        if steps == 7:
            loop.continue_at(0)
            parts = run_recipe(recipe, steps, tmp_path / "half.mdl")
        else:
            recipe.load(cstorch.load(tmp_path / "half.mdl"))
            parts += run_recipe(recipe, steps)
    assert parts == whole


def test_metrics_of_an_evaluation_equal_a_direct_computation(configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model().eval())
    accuracy = AccuracyMetric("accuracy")

    @cstorch.compile_step
    def step(batch: Any) -> torch.Tensor:
        x, y = batch
        logits = model(x)
        accuracy(labels=y.clone(), predictions=logits.argmax(-1).int())
        return functional.cross_entropy(logits, y)

    with torch.no_grad():
        for batch in DataLoader(data, num_epochs=1):
            step(batch)
        eager = new_model().eval()
        hits = [(eager(x).argmax(-1) == y).float().mean().item() for x, y in data()]
    assert float(accuracy) == pytest.approx(sum(hits) / len(hits), rel=1e-6)


def test_compile_only_and_validate_only_run_nothing(tmp_path: Path) -> None:
    for setting, artifacts in (("validate_only", 0), ("compile_only", 1)):
        config._configured.clear()
        cstorch.configure(model_dir=tmp_path / setting, **{setting: True})
        model = cstorch.compile(new_model())
        turns, seen = 0, []
        step = cstorch.compile_step(lambda batch, model=model: train_step(model, *batch))
        note = cstorch.step_closure(lambda loss, seen=seen: seen.append(loss.item()))
        for batch in DataLoader(data, num_steps=STEPS):
            note(step(batch))
            turns += 1
        assert (turns, seen) == (1, [])
        assert len(list((tmp_path / setting).glob("cs_*"))) == artifacts


def test_a_batch_of_another_shape_is_named(configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model())

    def uneven() -> torch.utils.data.DataLoader:
        x = torch.randn(40, FEATURES)
        return torch.utils.data.DataLoader(
            TensorDataset(x, torch.zeros(40, dtype=torch.int64)), batch_size=16
        )

    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    with pytest.raises(
        InputError, match=r"float32\[8, 6\] for input_0, expected float32\[16, 6\].*drop_last"
    ):
        run(step, DataLoader(uneven, num_steps=STEPS))


def test_a_value_read_in_the_step_ends_the_loop_before_anything_runs(configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model())
    step = cstorch.compile_step(lambda batch: print(train_step(model, *batch)))
    with pytest.raises(TensorReadError, match="step_closure"):
        run(step, DataLoader(data, num_steps=STEPS))


def test_calls_in_the_wrong_place_are_refused(configure: Configure) -> None:
    configure()
    with pytest.raises(ConfigureError, match="called twice"):
        configure()
    with pytest.raises(StepError, match="outside of a loop over a DataLoader"):
        cstorch.compile_step(lambda: None)()
    with pytest.raises(ClosureError, match="outside of a loop"):
        cstorch.step_closure(lambda: None)()
    with pytest.raises(CompileCallError, match=r"expected a torch\.nn\.Module"):
        cstorch.compile(3)  # type: ignore[type-var]
    with pytest.raises(CompileCallError, match="backend is 'tpu'"):
        cstorch.compile(new_model(), "tpu")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"compile_only": True, "validate_only": True}, "both True"),
        ({"checkpoint_steps": -1}, "checkpoint_steps is -1"),
        ({"num_csx": 2}, "num_csx is 2, expected 1"),
        ({"checkpoint_step": 5}, "got checkpoint_step, expected model_dir"),
    ],
)
def test_configurations_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigureError, match=text):
        cstorch.configure(**settings)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 32),
        ({"num_steps": 7}, 7),
        ({"num_steps": 7, "max_steps": 5}, 5),
        ({"num_epochs": 2}, 64),
        ({"num_epochs": 2, "steps_per_epoch": 9}, 18),
        ({"num_epochs": 2, "steps_per_epoch": 9, "max_steps": 10}, 10),
        ({"steps_per_epoch": 9}, 9),
    ],
)
def test_steps_of_a_loop(settings: dict[str, int], steps: int) -> None:
    assert len(DataLoader(data, **settings)) == steps


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_steps": 3, "num_epochs": 1}, "one of the two ways"),
        ({"num_steps": 0}, "num_steps is 0, expected 1 or more"),
    ],
)
def test_steps_that_cannot_be_are_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(InputError, match=text):
        DataLoader(data, **settings)


def test_what_is_no_input_function_is_refused() -> None:
    with pytest.raises(InputError, match="expected a function that returns"):
        DataLoader(data())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"returns a int, expected a torch\.utils"):
        len(DataLoader(lambda: 3))
