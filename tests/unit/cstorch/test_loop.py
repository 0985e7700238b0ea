"""A program's own loop on a CS system: its results, and the values that it may read."""

from __future__ import annotations

import errno
import inspect
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import cstorch
from cs_runtime.errors import NonFiniteLossError
from cs_runtime.options import local_compile_dir
from cs_system.client.reservation import Reservation, StateStream
from csrun.tasks.place import EXIT_REQUEUE
from cstorch import job
from cstorch.config import Configuration
from cstorch.errors import (
    CompileCallError,
    ConfigureError,
    InputError,
    LoopLeftError,
    StateUnavailableError,
    StepError,
    TensorReadError,
    ValueUnavailableError,
)
from cstorch.loop import base
from cstorch.program import Program, configuration
from cstorch.tracing import state
from cstorch.utils.data import DataLoader
from cstorch.v1.session.core import cb_model as cm
from tests.systems import RunningSystem

STEPS, FEATURES, CLASSES, BATCH = 25, 6, 4, 16


pytestmark = pytest.mark.usefixtures("fresh_process")

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


def summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a run."""
    found: dict[str, Any] = json.loads((folder / "run_summary.json").read_text())
    return found


def run(step: Callable[[Any], Any], loader: DataLoader) -> None:
    """Run a loop that only makes steps."""
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
            with pytest.raises(StateUnavailableError, match=r"after step 5, .*every 10 steps"):
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


def test_the_next_steps_run_while_the_state_is_transferred(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def record(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    record(Reservation, "run_steps")
    record(StateStream, "read")
    configure(checkpoint_steps=10)
    model = cstorch.compile(new_model())
    loader = DataLoader(data)

    @cstorch.compile_step
    def step(batch: Any) -> torch.Tensor:
        return train_step(model, *batch)

    states = {}
    for number, batch in enumerate(islice(loader, STEPS), start=1):
        step(batch)
        if number == 10:
            states[number] = total(model)
    assert calls[:4] == ["run_steps", "run_steps", "run_steps", "read"]  # steps 1, 2 to 10, and 11 to 20
    assert states == pytest.approx({10: by_torch()[1][10]}, rel=1e-6)


def test_totals_of_the_norms_that_clip_are_outputs_where_weights_stream(configure: Configure) -> None:
    """They follow from the gradients of all layers, whatever computes the norms."""

    def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: Any) -> tuple[Any, Any]:
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = sum(torch.pow(torch.norm(p.grad), 2.0) for p in model.parameters()) ** 0.5
        nn.utils.clip_grad_norm_(list(model.parameters()), 0.5)
        optimizer.step()
        return loss.detach(), norm

    def deep() -> nn.Sequential:
        torch.manual_seed(1)
        widths = [FEATURES, 24, 24, 24, CLASSES]
        return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)))

    configure(execution="weight_streaming")
    model = cstorch.compile(deep())
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = cstorch.compile_step(lambda batch: trained(model, *batch, optimizer))
    found: list[float] = []
    note = cstorch.step_closure(lambda loss, norm: found.extend([loss.item(), norm.item()]))
    for batch in DataLoader(data, num_steps=4):
        note(*step(batch))
    eager, expected = deep(), []
    optimizer_of_torch = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
    for batch in islice(data(), 4):
        expected += [x.item() for x in trained(eager, *batch, optimizer_of_torch)]
    assert found == pytest.approx(expected, rel=1e-5)


def test_an_evaluation_changes_nothing_and_continues_over_the_end_of_an_epoch(configure: Configure) -> None:
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


def test_loops_over_epochs_are_one_training_of_one_recorded_step(configure: Configure) -> None:
    configure()
    model, recorded, losses = cstorch.compile(new_model()), [], []

    @cstorch.compile_step
    def step(batch: Any) -> torch.Tensor:
        recorded.append(len(losses))
        return train_step(model, *batch)

    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    for _ in range(3):
        for batch in DataLoader(data, num_steps=7):
            note(step(batch))
    assert recorded == [0]
    assert state.steps_done() == 21
    assert losses == pytest.approx(by_torch()[0][:21], rel=1e-6)


def test_programs_of_the_first_release_iterate_once_an_epoch(
    configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    configure()
    model, epochs = cstorch.compile(new_model()), []
    losses: list[float] = []
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    loader = DataLoader(data, num_epochs=3, steps_per_epoch=8, max_steps=20)
    for _ in range(loader.num_epochs):
        for batch in loader:
            note(step(batch))
        epochs.append(len(losses))
    assert epochs == [8, 16, 20]
    assert losses == pytest.approx(by_torch()[0][:20], rel=1e-6)
    lines = [message for message in caplog.messages if message.startswith("global step ")]
    assert [re.findall("global step \\d+|of 20|epoch .* of \\d+", line) for line in lines] == [
        ["global step 1", "of 20", "epoch 1 of 3, step 1 of 8"],
        ["global step 9", "of 20", "epoch 2 of 3, step 1 of 8"],
        ["global step 17", "of 20", "epoch 3 of 3, step 1 of 4"],
    ]


def test_a_loop_begins_where_the_program_says(configure: Configure) -> None:
    """The checkpoint does not record the number of its steps."""
    configure()
    model, losses = cstorch.compile(new_model()), []
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    for batch in DataLoader(data, num_steps=2, initial_step=5):
        note(step(batch))
    eager = new_model()
    expected = [train_step(eager, x, y).item() for x, y in list(data())[5:7]]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert state.steps_done() == 7


def test_an_evaluation_inside_of_a_training_sees_its_state_and_ends_where_that_continues(
    configure: Configure,
) -> None:
    """Model in two modes, by two functions, at the steps where the state may be read."""
    configure(checkpoint_steps=4)
    model = cstorch.compile(new_model())
    losses: list[float] = []
    evaluated: list[float] = []
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    note_evaluation = cstorch.step_closure(lambda loss: evaluated.append(loss.item()))

    @cstorch.compile_step
    def evaluation_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x), y)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(data, num_steps=1):
                note_evaluation(evaluation_step(x, y))
        model.train()

    for i, batch in enumerate(DataLoader(data, num_steps=12), start=1):
        note(step(batch))
        if i % 4 == 0:
            evaluate()
        if i == 6:
            with pytest.raises(StateUnavailableError, match="after step 6"):
                evaluate()
    eager, expected, expected_evaluated = new_model(), [], []
    for i, (x, y) in zip(range(1, 13), data(), strict=False):
        expected.append(train_step(eager, x, y).item())
        if i % 4 == 0:
            eager.eval()
            first_x, first_y = next(iter(data()))
            expected_evaluated.append(functional.cross_entropy(eager(first_x), first_y).item())
            eager.train()
    assert losses == pytest.approx(expected, rel=1e-6)
    assert evaluated == pytest.approx(expected_evaluated, rel=1e-6)


class Counted(nn.Module):
    """A model that counts and averages its inputs in a buffer, in an evaluation too."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = new_model()
        self.register_buffer("average", torch.zeros(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average.mul_(0.5).add_(x.mean(0))
        logits: torch.Tensor = self.inner(x + 0.1 * self.average)
        return logits


@pytest.mark.parametrize("inside", [True, False])
def test_an_evaluation_that_changes_a_buffer_reads_its_input_from_the_first_batch(
    inside: bool, configure: Configure
) -> None:
    """The following training continues where it was, with the buffer as the evaluation leaves it."""
    configure(checkpoint_steps=3)
    model = cstorch.compile(Counted())
    losses: list[float] = []
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    evaluation_step = cstorch.compile_step(lambda x, y: functional.cross_entropy(model(x), y))
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(data, num_steps=2):
                note(evaluation_step(x, y))
        model.train()

    for _ in range(1 if inside else 2):
        for i, batch in enumerate(DataLoader(data, num_steps=6 if inside else 3), start=1):
            note(step(batch))
            if inside and i % 3 == 0:
                evaluate()
        if not inside:
            evaluate()
    assert state.steps_done() == 6
    eager, expected, batches = Counted(), [], iter(data())
    for _ in range(2):
        expected += [train_step(eager, *next(batches)).item() for _ in range(3)]
        eager.eval()
        with torch.no_grad():
            expected += [functional.cross_entropy(eager(x), y).item() for x, y in list(data())[:2]]
        eager.train()
    assert losses == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(model.average.cpu(), eager.average, rtol=1e-5, atol=1e-6)


def test_a_loop_that_is_left_early_keeps_the_state_where_it_may_be_read(
    configure: Configure, tmp_path: Path
) -> None:
    configure(checkpoint_steps=5)
    model = cstorch.compile(new_model())
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    for i, batch in enumerate(DataLoader(data, num_steps=STEPS), start=1):
        step(batch)
        if i == 10:
            break
    assert total(model) == pytest.approx(by_torch()[1][10], rel=1e-6)
    assert summary(tmp_path)["status"] == "left"

    def fail_behind_step_3() -> None:
        for i, batch in enumerate(DataLoader(data, num_steps=STEPS), start=1):
            step(batch)
            if i == 3:
                raise KeyError("no such record")

    with pytest.raises(KeyError) as caught:
        fail_behind_step_3()
    with pytest.raises(LoopLeftError, match="left its loop after step 3") as another:
        total(model)
    base.report_unfinished(another.value)
    assert summary(tmp_path)["status"] == "left"
    base.report_unfinished(caught.value)
    assert (summary(tmp_path)["status"], summary(tmp_path)["error"]["type"]) == ("failed", "KeyError")


def test_a_loop_that_is_left_with_a_full_disk_logs_it(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write_to_full_disk(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    configure(checkpoint_steps=5)
    model = cstorch.compile(new_model())
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    for i, batch in enumerate(DataLoader(data, num_steps=STEPS), start=1):
        step(batch)
        if i == 10:
            monkeypatch.setattr("cs_runtime.files.replace_file", write_to_full_disk)
            break
    assert not raised
    assert "the result of the run is not recorded" in caplog.text
    assert "No space left on device" in caplog.text
    assert total(model) == pytest.approx(by_torch()[1][10], rel=1e-6)


def test_a_loop_runs_one_step_function_once_a_turn(configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model())
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    other = cstorch.compile_step(lambda batch: train_step(model, *batch))
    with pytest.raises(StepError, match="another step than the one"):
        run(lambda batch: (step(batch), other(batch)), DataLoader(data, num_steps=2))
    with pytest.raises(StepError, match=r"more than the loop has steps \(2\)"):
        run(lambda batch: (step(batch), step(batch)), DataLoader(data, num_steps=2))


def test_a_rate_that_the_program_sets_counts_from_the_next_loop_on(configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model())
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)

    @cstorch.compile_step
    def step(batch: Any) -> torch.Tensor:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    weights = [model[0].weight.cpu().clone()]
    for rate in (0.1, 0.0):
        optimizer.param_groups[0]["lr"] = rate
        run(step, DataLoader(data, num_steps=2))
        weights.append(model[0].weight.cpu().clone())
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])

    def set_in_the_loop(batch: Any) -> None:
        step(batch)
        optimizer.param_groups[0]["lr"] = 0.2

    with pytest.raises(StepError, match=r"lr of an optimizer's group is set to 0\.2 .*recorded with 0\.0"):
        run(set_in_the_loop, DataLoader(data, num_steps=3))


def test_a_mask_that_the_program_changes_counts_from_the_next_loop_on(configure: Configure) -> None:
    """The compiler takes a buffer that no step writes as a constant, where it is a mask."""
    configure()

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = new_model()
            self.register_buffer("mask", torch.ones(1, dtype=torch.bool))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(self.mask, self.inner(x), torch.zeros(()))

    model = cstorch.compile(Masked()).eval()
    step = cstorch.compile_step(lambda batch: model(batch[0]).square().sum())
    sums: list[float] = []
    note = cstorch.step_closure(lambda loss: sums.append(loss.item()))
    for mask in (True, False):
        model.load_state_dict({**model.state_dict(), "mask": torch.tensor([mask])})
        with torch.no_grad():
            run(lambda batch: note(step(batch)), DataLoader(data, num_steps=1))
    assert sums[0] > 0
    assert sums[1] == 0


def test_a_request_for_a_checkpoint_ends_a_job_after_the_checkpoint_of_the_program(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of earlier steps is not available."""
    monkeypatch.setenv("CSRUN_REQUEUE", "1")
    configure(checkpoint_steps=10)
    model = cstorch.compile(new_model())
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    turns: list[int] = []

    def train() -> None:
        for i, batch in enumerate(DataLoader(data, num_steps=STEPS), start=1):
            step(batch)
            turns.append(i)
            if i == 4:
                os.kill(os.getpid(), signal.SIGUSR1)
            if i == 20:
                total(model)

    try:
        with pytest.raises(SystemExit) as left:
            train()
    finally:
        Program.current().checkpoint_requests.clear()
    assert left.value.code == EXIT_REQUEUE
    assert turns == list(range(1, 21))
    assert json.loads((tmp_path / "run_summary.json").read_text())["status"] == "requeued"
    assert state.steps_done() == 20


def test_compile_only_and_validate_only_run_nothing(tmp_path: Path) -> None:
    for setting, artifacts in (("validate_only", 0), ("compile_only", 1)):
        Program.reset()
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


def test_operations_between_steps_compute_with_what_the_step_returned(configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model())
    losses: list[float] = []
    halves: list[float] = []
    tops: list[list[float]] = []

    @cstorch.trace
    def step(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return train_step(model, *batch), model(batch[0])

    @cstorch.step_closure
    def keep(loss: torch.Tensor, half: torch.Tensor, top: torch.Tensor) -> None:
        losses.append(loss.item())
        halves.append(half.item())
        tops.append(top.tolist())

    total = torch.zeros(())
    for batch in DataLoader(data, num_steps=3):
        loss, logits = step(batch)
        total = total + loss
        keep(loss, loss.double() / 2, logits[0].max(-1, keepdim=True).values)
        with pytest.raises(ValueUnavailableError, match=r"item\(\).*step_closure"):
            loss.item()
        with pytest.raises(ValueUnavailableError, match=r"mul_.*step_closure"):
            loss.mul_(2)
    assert len(set(losses)) == 3
    assert halves == [loss / 2 for loss in losses]
    assert all(len(top) == 1 for top in tops)
    assert total.item() == pytest.approx(sum(losses), rel=1e-6)


def test_operations_between_steps_have_no_value_where_a_program_is_only_compiled(tmp_path: Path) -> None:
    cstorch.configure(model_dir=tmp_path, compile_only=True)
    model = cstorch.compile(new_model())

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        return train_step(model, *batch)

    for batch in DataLoader(data, num_steps=2):
        doubled = step(batch).double() * torch.ones(2, dtype=torch.float64)
        assert (doubled.shape, doubled.dtype) == ((2,), torch.float64)
        with pytest.raises(ValueUnavailableError, match="step_closure"):
            doubled.tolist()


class ReadOnce(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that are consumed by reading them."""

    def __init__(self, count: int) -> None:
        self._left = list(torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(3)))

    def __len__(self) -> int:
        return len(self._left)

    def __getitem__(self, index: int) -> torch.Tensor:
        sample, self._left[index] = self._left[index], torch.empty(0)
        if not len(sample):
            raise RuntimeError(f"sample {index} is read again")
        return sample


@pytest.mark.parametrize("trains", [True, False])
def test_no_more_batches_are_read_than_the_steps_of_a_run_use(trains: bool, configure: Configure) -> None:
    configure()
    model = cstorch.compile(new_model())
    found: list[float] = []

    @cstorch.trace
    def step(x: torch.Tensor) -> torch.Tensor:
        return train_step(model, x, x[:, :CLASSES].argmax(1)) if trains else model(x).mean()

    keep = cstorch.step_closure(lambda loss: found.append(loss.item()))

    for x in DataLoader(lambda: torch.utils.data.DataLoader(ReadOnce(3 * BATCH), batch_size=BATCH)):
        keep(step(x))
    assert len(found) == 3


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
    with pytest.raises(CompileCallError, match=r"expected a torch\.nn\.Module"):
        cstorch.compile(3)  # type: ignore[type-var]
    with pytest.raises(CompileCallError, match="backend is 'tpu'"):
        cstorch.compile(new_model(), "tpu")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"compile_only": True, "validate_only": True}, "both True"),
        ({"checkpoint_steps": -1}, "checkpoint_steps is -1"),
        ({"checkpoint_steps": "100"}, "checkpoint_steps is '100', expected a whole number"),
        ({"mgmt_address": 9000}, "mgmt_address is 9000, expected 'IP:PORT'"),
        (
            {"num_csx": 2, "execution": "pipelined"},
            "num_csx is 2 with execution 'pipelined', expected 1: .* to weight_streaming, or leave it auto",
        ),
        ({"max_act_per_csx": "much"}, "max_act_per_csx is 'much', expected a number of bytes"),
        (
            {"micro_batch_size": "half"},
            "micro_batch_size is 'half', expected a whole number of 1 or more samples",
        ),
        ({"recompute": "some"}, "recompute is 'some', expected one of auto, none, all"),
        ({"num_replicas": 0}, "num_replicas is 0, expected a whole number of 1 or more, or 'auto'"),
        (
            {"num_replicas": 2, "execution": "weight_streaming"},
            "num_replicas is 2 with execution 'weight_streaming', expected 1",
        ),
        ({"num_workers_per_csx": -1}, "num_workers_per_csx is -1"),
        ({"max_wgt_servers": 0}, "max_wgt_servers is 0, expected a whole number of 1 or more"),
        ({"checkpoint_step": 5}, "unknown argument 'checkpoint_step'; did you mean 'checkpoint_steps'"),
    ],
)
def test_configurations_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigureError, match=text):
        cstorch.configure(**settings)


def test_settings_have_the_defaults_of_the_document() -> None:
    defaults = {
        "model_dir": "./",
        "compile_dir": "/opt/cerebras/cached_compile",
        "compile_only": False,
        "validate_only": False,
        "checkpoint_steps": 0,
        "num_csx": 1,
        "max_wgt_servers": 24,
        "mount_dirs": None,
        "python_paths": None,
        "transfer_processes": 5,
        "num_workers_per_csx": 1,
        "job_labels": None,
        "max_act_per_csx": 1,
    }
    found = inspect.signature(cstorch.configure).parameters
    assert {name: found[name].default for name in defaults} == defaults


def test_none_means_the_default(configure: Configure, tmp_path: Path, system: RunningSystem) -> None:
    left = ("compile_dir", "compile_only", "validate_only", "checkpoint_steps", "seed", "num_csx")
    configure(num_workers_per_csx=0, **dict.fromkeys((*left, "max_wgt_servers", "mount_dirs", "job_labels")))
    assert configuration() == Configuration(tmp_path, mgmt_address=system.address)


def test_a_compile_dir_of_the_appliance_means_the_folder_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guides name folders such as `/USER`, which a user cannot make on another machine."""
    (tmp_path / "file").touch()
    absent = tmp_path / "file" / "USER"
    for given in (None, "", "/opt/cerebras/cached_compile", absent, str(absent / "below")):
        assert local_compile_dir(given) is None
    assert local_compile_dir(str(tmp_path / "new" / "folder")) == tmp_path / "new" / "folder"
    assert [record.message for record in caplog.records] == [
        f"cannot create the compile_dir {folder} here; writing artifacts to the directory of the run"
        for folder in (absent, absent / "below")
    ]


def test_names_of_the_session_api_tell_the_tasks_of_other_programs_too(configure: Configure) -> None:
    """Input functions of release 1.8 shard by them."""
    assert not cm.use_cs()
    configure()
    assert cm.use_cs()
    with job.reading_as(3, 2):
        assert (cm.num_streamers(), cm.get_streaming_rank(), cm.is_streamer()) == (3, 2, True)
    assert cm.rendezvous("alone", b"mine") == [b"mine"]


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
        ({"num_steps": 7, "initial_step": 5}, 7),
        ({"num_steps": 7, "max_steps": 9, "initial_step": 5}, 4),
        ({"num_steps": 7, "max_steps": 9, "initial_step": 9}, 0),
    ],
)
def test_steps_of_a_loop(settings: dict[str, int], steps: int) -> None:
    assert len(DataLoader(data, **settings)) == steps


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_steps": 3, "num_epochs": 1}, "one of the two ways"),
        ({"num_steps": 0}, "num_steps is 0, expected a whole number of 1 or more"),
        ({"num_steps": "3"}, "num_steps is '3', expected a whole number of 1 or more"),
        ({"initial_step": -1}, "initial_step is -1, expected a whole number of 0 or more"),
    ],
)
def test_steps_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        DataLoader(data, **settings)


def test_values_that_are_no_input_function_are_refused() -> None:
    with pytest.raises(InputError, match="expected a function that returns"):
        DataLoader(data())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"returns a int, expected a torch\.utils"):
        len(DataLoader(lambda: 3))


def test_the_log_of_a_training_run_has_the_findings_about_its_input_once(
    configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    """A shuffle needs no seed: a run seeds the random numbers of its input."""

    def wide() -> torch.utils.data.DataLoader:
        calls.append("")
        x = torch.randn(64, FEATURES)
        return torch.utils.data.DataLoader(TensorDataset(x, x.argmax(1) % CLASSES), BATCH, shuffle=True)

    caplog.set_level("INFO")
    configure()
    model, calls = cstorch.compile(new_model()), []
    step = cstorch.compile_step(lambda batch: train_step(model, *batch))
    loader = DataLoader(wide, num_steps=2)
    for _ in range(2):
        run(step, loader)
    lines = [record.getMessage() for record in caplog.records if "[input_fn]" in record.getMessage()]
    assert len([line for line in lines if "dtype-wide - recommended" in line]) == 1
    assert f"{Path(__file__).name}:" in next(line for line in lines if "dtype-wide" in line)
    assert not [line for line in lines if "shuffle-without-seed" in line]
    assert len(calls) == 4, "described, reported on, and streamed twice"


def test_a_loss_that_is_no_number_ends_the_loop(configure: Configure, tmp_path: Path) -> None:
    configure()
    model = cstorch.compile(new_model())

    def step(batch: Any) -> torch.Tensor:
        return train_step(model, batch[0] / 0.0, batch[1])

    with pytest.raises(NonFiniteLossError, match="the loss is nan at global step 1"):
        run(cstorch.compile_step(step), DataLoader(data, num_steps=STEPS))
    assert json.loads((tmp_path / "run_summary.json").read_text())["status"] == "failed"
