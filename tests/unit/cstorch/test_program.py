"""Several programs in one process, each with its own configuration, backend, models and state."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import cstorch
from cstorch.errors import ConfigureError
from cstorch.metrics import AccuracyMetric
from cstorch.program import Program, configuration
from cstorch.tracing.state import steps_done
from cstorch.utils.data import DataExecutor, DataLoader
from tests.systems import RunningSystem

pytestmark = pytest.mark.usefixtures("fresh_process")

FEATURES, BATCH = 6, 8


def data(classes: int) -> torch.utils.data.DataLoader:
    x = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(3))
    return torch.utils.data.DataLoader(TensorDataset(x, x[:, :classes].argmax(1)), batch_size=BATCH)


def linear(classes: int) -> nn.Module:
    torch.manual_seed(classes)
    return nn.Linear(FEATURES, classes)


def two_layers(classes: int) -> nn.Module:
    torch.manual_seed(classes)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, classes))


def train(make: Callable[[int], nn.Module], classes: int, steps: int, lr: float) -> list[float]:
    """Return the losses of a program that has configured its run."""
    model = cstorch.compile(make(classes))
    optimizer = cstorch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses: list[float] = []

    @cstorch.trace
    def step(batch: list[torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    @cstorch.step_closure
    def keep(loss: torch.Tensor) -> None:
        losses.append(loss.item())

    for batch in DataExecutor(DataLoader(data, classes), num_steps=steps):
        keep(step(batch))
    return losses


def by_torch(make: Callable[[int], nn.Module], classes: int, steps: int, lr: float) -> list[float]:
    """Return the losses of the same program without the toolkit."""
    model = make(classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for x, y in list(data(classes))[:steps]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_two_programs_run_in_one_process_one_after_the_other(system: RunningSystem, tmp_path: Path) -> None:
    """The second one has another configuration and model, and starts from nothing."""
    address = system.address
    cstorch.configure(tmp_path / "first", seed=1, mgmt_address=address, checkpoint_steps=2)
    assert train(linear, 4, 5, 0.5) == pytest.approx(by_torch(linear, 4, 5, 0.5), rel=1e-5)
    first = Program.current()
    assert (steps_done(), len(first.models), configuration().checkpoint_steps) == (5, 1, 2)
    with pytest.raises(ConfigureError, match="called twice"):
        cstorch.configure(tmp_path / "second", mgmt_address=address)

    Program.reset()
    assert Program.current() is not first
    assert (steps_done(), Program.current().models, cstorch.use_cs()) == (0, [], False)
    cstorch.configure(tmp_path / "second", seed=2, mgmt_address=address)
    assert train(two_layers, 3, 6, 0.1) == pytest.approx(by_torch(two_layers, 3, 6, 0.1), rel=1e-5)
    assert (steps_done(), len(Program.current().models), configuration().checkpoint_steps) == (6, 1, 0)
    assert configuration().model_dir == tmp_path / "second"

    Program.reset()
    cstorch.backend("CPU", artifact_dir=tmp_path / "third")
    assert train(linear, 4, 5, 0.5) == pytest.approx(by_torch(linear, 4, 5, 0.5), rel=1e-5)
    assert (len(Program.current().models), len(Program.current().cpu_models)) == (0, 1)


def test_nothing_that_a_program_has_chosen_reaches_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cstorch")
    calls: list[str] = []
    performance = cstorch.backends.csx.performance

    def choose() -> None:
        cstorch.backend("CPU", artifact_dir=tmp_path)
        cstorch.amp.set_half_dtype("bfloat16")
        cstorch.register_decomposition(torch.ops.aten.relu.default)(lambda x: x.clamp(min=0))
        cstorch.core.compile.register_trace_fn_pre_hook(lambda: calls.append("before"))
        AccuracyMetric(name="accuracy")
        performance.transfer_processes = 7
        with cstorch.pol(level=2):
            assert cstorch.current_pol() == 2

    for _ in range(2):
        choose()
        program = Program.current()
        assert (performance.transfer_processes, program.half_dtype) == (7, "bfloat16")
        assert program.decompositions
        assert program.hooks.before_step
        Program.reset()
        assert (performance.transfer_processes, Program.current().half_dtype) == (5, "float16")
        assert cstorch.backends.current_backend(raise_exception=False) is None
        assert not Program.current().decompositions
        assert not Program.current().hooks.before_step
        assert not Program.current().metrics
    lines = [line for line in caplog.messages if line.startswith("pol()")]
    assert len(lines) == 2, "each program logs its settings without effect once"


def test_a_reset_gives_the_signal_for_checkpoints_back() -> None:
    from cstorch.startup import take_requests

    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    take_requests()
    signal.raise_signal(signal.SIGUSR1)
    assert Program.current().checkpoint_requests.pending
    Program.reset()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert not Program.current().checkpoint_requests.pending
