"""Sessions: allowed and refused calls in a step, and the small names around them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from cerebras_torch.saver.pt_h5_saver import PyTorchH5Saver
from torch import nn
from torch.utils.data import TensorDataset

import cerebras_torch as cbtorch
import cstorch
import input_analyzer
from cs_runtime.errors import CallError
from cstorch import optim
from cstorch.distributed import ClusterConfig
from cstorch.errors import (
    CheckpointError,
    ConfigureError,
    LostWriteError,
    OptimizerArgumentError,
    ScheduleError,
    SessionError,
    TensorReadError,
    ValueUnavailableError,
)
from cstorch.input.analysis import log_report
from cstorch.loop.rates import RateTracker
from cstorch.program import Program, configuration
from cstorch.tracing.device import DeviceTensor, to_device
from cstorch.tracing.state import steps_done
from cstorch.v1.session import rendezvous, state
from cstorch.v1.session.core import cb_model as cm
from cstorch.v1.session.core import modes
from cstorch.v1.session.environment import RunConfig
from cstorch.v1.session.optim.lr_scheduler import count_step, take_schedule
from cstorch.v1.session.utils import extract_loss, nest
from tests.systems import RunningSystem

FEATURES, CLASSES, BATCH, STEPS = 6, 4, 16, 4
Batch = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(fresh_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def new_loader() -> torch.utils.data.DataLoader[Any]:
    x = torch.randn(BATCH * STEPS, FEATURES, generator=torch.Generator().manual_seed(3))
    return torch.utils.data.DataLoader(TensorDataset(x, x[:, :CLASSES].argmax(1)), batch_size=BATCH)


def new_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))


class Draws(torch.utils.data.IterableDataset[torch.Tensor]):
    """Samples of a generator that one iterator leaves to the next."""

    def __init__(self) -> None:
        self.numbers = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(BATCH):
            yield torch.rand(FEATURES, generator=self.numbers)


@pytest.mark.parametrize("skip", [0, 3])
def test_a_loader_is_read_once_where_its_data_has_a_state(skip: int) -> None:
    """Description and report of the input draw nothing that is not streamed."""
    expected = torch.utils.data.DataLoader(Draws(), batch_size=BATCH // 2)
    loader = cbtorch.dataloader(torch.utils.data.DataLoader(Draws(), batch_size=BATCH // 2))
    assert [spec.shape for spec in loader.inputs()] == [(BATCH // 2, FEATURES)]
    log_report(loader)
    streamed = torch.stack(list(islice(loader.endless(skip), 5 - skip)))
    torch.testing.assert_close(
        streamed, torch.stack([*expected, *expected, *expected])[skip:5], rtol=0, atol=0
    )


class Training:
    """A model with its optimizer in a session, or on this CPU."""

    def __init__(self, make: Callable[..., torch.optim.Optimizer], **arguments: Any) -> None:
        self.model = cbtorch.module(new_model())
        self.optimizer = cbtorch.optimizer(make(self.model.parameters(), **arguments))
        self.loader = cbtorch.dataloader(new_loader())

    def step(self, batch: Batch) -> torch.Tensor:
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def losses(self) -> list[float]:
        """The values are those of one epoch, read after the update."""
        with cbtorch.Session(self.loader, "train"):
            return [self.step(batch).item() for batch in self.loader]


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        (torch.optim.Adagrad, {"lr": 0.1}),
        (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
        (optim.AdamW, {"lr": 0.01}),
    ],
)
def test_optimizers_train_as_on_a_cpu(
    system: RunningSystem, make: Callable[..., torch.optim.Optimizer], arguments: dict[str, Any]
) -> None:
    """Optimizers of torch.optim compute PyTorch's numbers, including state that their first step creates."""
    expected = Training(make, **arguments).losses()
    Program.reset()
    cbtorch.initialize(cs_ip=system.address)
    ours = Training(make, **arguments)
    assert isinstance(ours.optimizer, cbtorch.optim.Optimizer)
    assert ours.losses() == pytest.approx(expected, rel=2e-5)
    assert len(set(expected)) == STEPS


def test_the_body_runs_for_fetched_steps_and_decides_by_their_numbers(system: RunningSystem) -> None:
    """Python in it sees the step, which its closures get as an argument; the steps between them run too."""
    expected = Training(torch.optim.SGD, lr=0.1).losses()
    Program.reset()
    cbtorch.initialize(cs_ip=system.address)
    training = Training(torch.optim.SGD, lr=0.1)
    seen: dict[int, float] = {}
    weights: dict[str, float] = {}

    @cm.step_closure
    def note(loss: torch.Tensor, step: int) -> None:
        assert state().is_inside_execution_loop
        assert step == cm.get_run_step()
        seen[step] = loss.item()

    @cm.step_closure
    def save(name: str) -> None:
        weights[name] = float(training.model[0].weight.sum())

    assert cm.get_run_step() == 0
    cm.set_run_config(total_steps=7, checkpoint_steps=3, fetch_steps=2)
    steps = []
    with cbtorch.Session(training.loader, modes.TRAIN):
        for _ in range(5):  # epochs
            for batch in training.loader:
                loss = training.step(batch)
                steps.append(cm.get_run_step())
                if steps[-1] % 2 == 0:
                    note(loss, steps[-1])
                if steps[-1] % 3 == 0 or steps[-1] == 7:
                    save(f"checkpoint_{steps[-1]}")
    assert steps == [2, 3, 4, 6, 7]
    assert sorted(seen) == [2, 4, 6]
    assert len(set(weights.values())) == len(weights) == 3
    assert list(weights) == ["checkpoint_3", "checkpoint_6", "checkpoint_7"]
    assert [seen[step] for step in (2, 4)] == pytest.approx([expected[1], expected[3]], rel=2e-5)
    assert state().rate_tracker.total_count == 7 * BATCH
    assert cm.metrics_counter_value("CerebrasCompileTimeMs") is not None


def test_break_ends_a_loop_with_a_run_config_at_that_step(system: RunningSystem) -> None:
    cbtorch.initialize(cs_ip=system.address)
    training = Training(torch.optim.SGD, lr=0.1)
    cm.set_run_config(total_steps=8, checkpoint_steps=0, fetch_steps=2)
    losses = []
    with cbtorch.Session(training.loader, modes.TRAIN):
        for batch in training.loader:
            losses.append(training.step(batch).item())
            if cm.get_run_step() == 4:
                break
    assert len(losses) == 2
    assert training.optimizer.state_dict()["global_step"] == 4


def test_functions_of_amp_are_those_of_the_scaler() -> None:
    """Callable before there is one: programs ask when they make their optimizer, and load what they saved."""
    assert cbtorch.amp.state_dict() == cbtorch.amp.get_init_params() == {}
    cbtorch.amp.load_state_dict({})
    scaler = cbtorch.amp.GradScaler("dynamic", init_scale=8.0, max_gradient_norm=1.0)
    assert cbtorch.amp.get_init_params()["max_gradient_norm"] == 1.0
    scaler.loss_scale.fill_(4.0)
    saved = cbtorch.amp.state_dict()
    assert saved["loss_scale"] == 4.0
    Program.reset()
    cbtorch.amp.load_state_dict(saved)
    assert cbtorch.amp.GradScaler("dynamic", init_scale=8.0).loss_scale == 4.0
    cbtorch.amp.GradScaler(16.0, max_gradient_norm=1.0)  # does not clip: the program has to
    assert cbtorch.amp.get_init_params()["max_gradient_norm"] is None


def test_an_optimizer_clips_and_has_what_schedules_are_made_on(system: RunningSystem) -> None:
    """A program's clipper is called before the update; PyTorch's schedules are made on `_optimizer`."""

    class Clipped(torch.optim.SGD):
        """Clip the gradients, which a program does itself on this CPU."""

        def step(self, closure: Any = None) -> Any:
            torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 0.1)
            return super().step(closure)

    expected = Training(Clipped, lr=0.5).losses()
    Program.reset()
    cbtorch.initialize(cs_ip=system.address)
    ours = Training(torch.optim.SGD, lr=0.5)
    ours.optimizer.gradient_clipper = lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(ours.optimizer._optimizer, lambda step: 1.0)
    ours.optimizer.set_main_lr_scheduler(schedule)
    assert ours.optimizer.lr_scheduler is schedule
    assert ours.losses() == pytest.approx(expected, rel=2e-5)
    saved = ours.optimizer.state_dict()
    assert ours.optimizer.convert_state_dict_for_checkpoint(saved) is saved


def test_a_scaler_that_is_called_divides_clips_and_skips(system: RunningSystem) -> None:
    """An overflow of the scaled gradients takes its step back; the others are those without a scale."""

    def train() -> list[float]:
        training = Training(torch.optim.SGD, lr=0.1)
        scaler = cbtorch.amp.GradScaler("dynamic", init_scale=2.0**15, max_gradient_norm=0.5)
        found = []
        with cbtorch.Session(training.loader, "train"):
            for x, y in training.loader:
                training.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(training.model(x), y)
                scaler(loss).backward()
                training.optimizer.step()
                found.append(loss.item())
        return found

    ours = train()
    plain = Training(torch.optim.SGD, lr=0.1)
    expected = []
    for batch in plain.loader:
        plain.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(plain.model(batch[0]), batch[1])
        loss.backward()
        nn.utils.clip_grad_norm_(plain.model.parameters(), 0.5)
        plain.optimizer.step()
        expected.append(loss.item())
    assert ours == pytest.approx(expected, rel=1e-5)
    Program.reset()
    cbtorch.initialize(cs_ip=system.address)
    assert train() == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def training(system: RunningSystem) -> Training:
    cbtorch.initialize(cs_ip=system.address)
    return Training(torch.optim.SGD, lr=0.1)


def run(training: Training, body: Callable[[Batch], object], mode: str = "train") -> None:
    """A session whose loop only runs the body."""
    with cbtorch.Session(training.loader, mode):
        for batch in training.loader:
            body(batch)


def test_an_optimizer_of_torch_counts_the_steps_of_its_state(training: Training) -> None:
    saved: list[Any] = []
    keep = cm.step_closure(saved.append)
    with cbtorch.Session(training.loader, "train"):
        for batch in islice(training.loader, 3):
            training.step(batch)
            keep(training.optimizer.state_dict())
    assert [state["global_step"] for state in saved] == [1, 2, 3]
    training.optimizer.load_state_dict(saved[1])
    assert steps_done() == 2


@pytest.mark.parametrize("calls_step", [False, True])
def test_declared_schedules_count_the_steps_of_their_optimizer(
    system: RunningSystem, calls_step: bool
) -> None:
    """Schedules of releases 1.x run in sequence; a loaded optimizer continues in them."""
    expected = [0.1, 0.05, 0.3, 0.2, 0.1, 0.1]

    def prepared() -> tuple[Training, list[Any]]:
        Program.reset()
        cbtorch.initialize(cs_ip=system.address)
        training = Training(optim.SGD, lr=1.0)
        schedules = [
            cbtorch.optim.lr_scheduler.Exponential(training.optimizer, 0.1, 2, 0.25),
            cbtorch.optim.lr_scheduler.Polynomial(training.optimizer, 0.3, 0.1, 2, 1.0, False),
        ]
        return training, schedules

    def rates(training: Training, schedules: list[Any], steps: int) -> list[float]:
        seen: list[float] = []
        counted: list[int] = []
        note = cm.step_closure(lambda rate: seen.append(rate.item()))
        count = cm.step_closure(lambda state: counted.append(state["global_step"]))
        done = steps_done()
        cm.set_run_config(steps, 2, 1)
        with cbtorch.Session(training.loader, "train"):
            for batch in training.loader:
                note(training.optimizer.param_groups[0]["lr"].clone())
                training.step(batch)
                count({"global_step": training.optimizer.state_dict()["global_step"]})
                for schedule in schedules if calls_step else ():
                    schedule.step()
        assert counted == [done + step for step in range(1, steps + 1)]
        return seen

    first = prepared()
    assert rates(*first, 4) == pytest.approx(expected[:4])
    saved = cm.to_cpu({"model": first[0].model.state_dict(), "optimizer": first[0].optimizer.state_dict()})
    second = prepared()
    second[0].model.load_state_dict(saved["model"])
    second[0].optimizer.load_state_dict(saved["optimizer"])
    assert rates(*second, 2) == pytest.approx(expected[4:])


@pytest.mark.parametrize("given", [(False,), (True,), ()])
def test_a_declared_schedule_may_count_all_steps(given: tuple[bool, ...]) -> None:
    """`disable_lr_steps_reset` may follow the arguments of a schedule in programs of releases 1.x."""
    optimizer = optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    named = {} if given else {"disable_lr_steps_reset": True}
    cbtorch.optim.lr_scheduler.Constant(optimizer, 0.5, 2, *given, **named)
    cbtorch.optim.lr_scheduler.Polynomial(optimizer, 1.0, 0.0, 4, 1.0, False, *given, **named)
    schedule = take_schedule(optimizer)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"].item())
        count_step(optimizer, schedule)
    assert rates == ([0.5, 0.5, 1.0, 0.75, 0.5] if given == (False,) else [0.5, 0.5, 0.5, 0.25, 0.0])


def rates_of_steps(optimizer: torch.optim.Optimizer, steps: int) -> list[list[float]]:
    """Return the learning rate of each parameter group at each step, by what the optimizer has declared."""
    schedule = take_schedule(optimizer)
    rates = []
    for _ in range(steps):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        count_step(optimizer, schedule)
    return rates


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("CyclicLR", (0.1, 0.5, 2, 3, "triangular", 1.0, "cycle")),
        ("OneCycleLR", (0.1, 0.5, 6, 0.5, 10.0, False, "linear")),
        ("CosineAnnealingWarmRestarts", (0.5, 3, 1, 0.1)),
    ],
)
def test_schedules_that_two_generations_name_alike_count_steps(name: str, arguments: tuple[Any, ...]) -> None:
    """The optimizer is that of the session API or of the module of later releases."""
    plain = optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    stepped = getattr(cstorch.optim.lr_scheduler, name)(plain, *arguments)
    expected = []
    for _ in range(6):
        expected.append([float(plain.param_groups[0]["lr"])])
        stepped.step()
    for module in (cbtorch.optim.lr_scheduler, cstorch.optim.lr_scheduler):
        optimizer = cbtorch.optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0))
        schedule = getattr(module, name)(optimizer, *arguments, False)
        schedule.step()
        assert rates_of_steps(optimizer, 6) == expected
        assert isinstance(schedule, getattr(cstorch.optim.lr_scheduler, name))


def test_schedules_are_scaled_for_groups_or_chained() -> None:
    """A program's own schedule replaces the schedules of this package that it wraps."""
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "adjust_learning_rate": x} for x in (1.0, 0.5)]
    optimizer = cbtorch.optimizer(torch.optim.SGD(groups, lr=1.0))
    with pytest.raises(ScheduleError, match="has no schedule, expected one that was made for it before"):
        cstorch.optim.lr_scheduler.ScalePerParamLR(optimizer, object(), None, False)
    cbtorch.optim.lr_scheduler.Constant(optimizer, 0.5, 2, False)
    cbtorch.optim.lr_scheduler.Polynomial(optimizer, 1.0, 0.0, 4, 1.0, False, False)
    scaled = cstorch.optim.lr_scheduler.ScalePerParamLR(optimizer, object(), 4, False)
    scaled.step()
    assert rates_of_steps(optimizer, 4) == [[x, x / 2] for x in (0.5, 0.5, 1.0, 0.75)]
    optimizer = cbtorch.optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0))
    cbtorch.optim.lr_scheduler.Polynomial(optimizer, 1.0, 0.0, 4, 1.0, False, False)
    cbtorch.optim.lr_scheduler.Exponential(optimizer, 0.5, 1, 0.5, False)
    own = [torch.optim.lr_scheduler.LambdaLR(optimizer._optimizer, lambda step: 1.0) for _ in range(2)]
    optimizer.set_main_lr_scheduler(torch.optim.lr_scheduler.ChainedScheduler(own))
    assert rates_of_steps(optimizer, 3) == [[1.0], [0.75 * 0.5], [0.5 * 0.25]]


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_a_program_that_loads_its_optimizer_continues_bit_for_bit(
    system: RunningSystem, make: Callable[..., torch.optim.Optimizer]
) -> None:
    """The step has a schedule, dropout masks and the next input; the optimizer is PyTorch's own."""

    def trained(saved: Any, steps: int) -> Any:
        Program.reset()
        cbtorch.initialize(cs_ip=system.address)
        cm.set_rng_state(5)
        training = Training(make, lr=0.1)
        training.model.add_module("4", nn.Dropout(0.3))
        cbtorch.optim.lr_scheduler.CosineDecay(training.optimizer, 0.1, 0.001, 40)
        if saved is not None:
            training.model.load_state_dict(saved["model"])
            training.optimizer.load_state_dict(saved["optimizer"])
        losses: list[float] = []
        note = cm.step_closure(lambda loss: losses.append(loss.item()))
        cm.set_run_config(steps, 0, 1)
        with cbtorch.Session(training.loader, "train"):
            for batch in training.loader:
                note(training.step(batch))
        state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        return losses, cm.to_cpu(state)

    whole, expected = trained(None, 7)
    begun, saved = trained(None, 3)
    ended, found = trained(saved, 4)
    assert begun + ended == whole
    assert all(torch.equal(x, expected["model"][name]) for name, x in found["model"].items())


def test_an_optimizer_that_decides_in_python_is_refused(system: RunningSystem) -> None:
    cbtorch.initialize(cs_ip=system.address)
    with pytest.raises(OptimizerArgumentError, match=r"Adadelta decides in Python.*cbtorch\.optim\.Adadelta"):
        Training(torch.optim.Adadelta)


def test_a_body_that_changes_is_refused_with_its_line(training: Training) -> None:
    factors = iter(range(1, 9))
    with pytest.raises(SessionError, match=r"test_session\.py:\d+: aten\.mul.*lr_scheduler"):
        run(training, lambda batch: training.step((batch[0] * next(factors), batch[1])))


def test_a_schedule_of_torch_is_refused(training: Training) -> None:
    schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9)
    with pytest.raises(SessionError, match=r"such as lr, changes .*cbtorch\.optim\.lr_scheduler"):
        run(training, lambda batch: (training.step(batch), schedule.step()))


def test_a_value_read_before_the_update_is_refused_with_its_line(training: Training) -> None:
    with pytest.raises(TensorReadError, match=r"test_session\.py:\d+"):
        run(training, lambda batch: training.model(batch[0]).sum().item())


def test_what_follows_a_read_is_no_step_any_more(training: Training) -> None:
    def body(batch: Batch) -> None:
        training.step(batch).item()
        training.model[0].weight.data.mul_(0.9)

    with pytest.raises(LostWriteError, match="in a session before the first value is read"):
        run(training, body)


def test_a_write_into_a_tensor_that_steps_only_read_is_not_lost(training: Training) -> None:
    """Between two steps it is refused, since the system would not see it; after the loop it is done."""
    training.model[1].eval()
    mean = training.model[1].running_mean

    def body(batch: Batch) -> None:
        training.step(batch).item()
        assert mean.sum().item() == 0
        with pytest.raises(LostWriteError, match=r"test_session\.py:\d+: aten\.fill_"):
            mean.fill_(1.0)

    run(training, body)
    mean.fill_(1.0)
    assert mean.sum().item() == len(mean)


def test_a_tensor_of_the_step_before_has_no_value_in_the_next(training: Training) -> None:
    kept: list[torch.Tensor] = []

    def body(batch: Batch) -> None:
        for loss in kept:
            loss.add(1)
        kept.append(training.step(batch))

    with pytest.raises(ValueUnavailableError, match=r"test_session\.py:\d+: a tensor that the step computes"):
        run(training, body)


@pytest.mark.parametrize(("mode", "text"), [("train", "changes no parameter"), ("eval", "changes the model")])
def test_a_step_of_the_other_mode_is_refused(training: Training, mode: str, text: str) -> None:
    training.model.eval()

    def body(batch: Batch) -> None:
        loss = training.step(batch) if mode == "eval" else training.model(batch[0]).sum()
        cm.step_closure(print)(loss)

    with pytest.raises(SessionError, match=text):
        run(training, body, mode)


def test_calls_in_the_wrong_place_are_refused(training: Training) -> None:
    with pytest.raises(SessionError, match="outside of a session"):
        next(iter(training.loader))
    with pytest.raises(SessionError, match="inside another"), cbtorch.Session(training.loader, "train"):
        cbtorch.Session(training.loader, "eval").__enter__()
    with pytest.raises(SessionError, match="mode is 'test', expected one of train"):
        cbtorch.Session(training.loader, mode="test")
    with pytest.raises(SessionError, match=r"compile\(\) is called before a step"):
        cbtorch.compile()
    with pytest.raises(ConfigureError, match=r"initialize\(\) is called twice"):
        cbtorch.initialize(cs_ip="127.0.0.1:1")
    with pytest.raises(CallError, match=r"optimizer\(\) got a int"):
        cbtorch.optimizer(3)  # type: ignore[arg-type]
    with pytest.raises(OptimizerArgumentError, match=r"passed to cbtorch\.module\(\) before"):
        cbtorch.optimizer(torch.optim.SGD(new_model().parameters(), lr=0.1))
    damped = torch.optim.SGD(training.model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    with pytest.raises(OptimizerArgumentError, match=r"use cbtorch\.optim\.SGD"):
        cbtorch.optimizer(damped)
    with pytest.raises(OptimizerArgumentError, match=r"lr_decay=0: use cbtorch\.optim\.Adagrad"):
        cbtorch.optimizer(torch.optim.Adagrad(training.model.parameters(), lr_decay=0.1))
    with pytest.raises(SessionError, match="total_steps=0"):
        cm.set_run_config(0, 0, 0)
    assert torch.tensor([1.0], device=cm.device()).tolist() == [1.0]


def test_closures_may_hold_their_tensors(training: Training) -> None:
    """`session.add_step_closure(lambda: ...)` is often called without arguments."""
    seen: list[tuple[float, float]] = []
    cm.set_run_config(3, 0, 1)
    with cbtorch.Session(training.loader, "train") as session:
        for batch in training.loader:
            loss = training.step(batch)
            double = loss.detach() * 2
            session.add_step_closure(lambda: seen.append((loss.item(), float(double))))  # noqa: B023
            cm.run_step_closures()
    assert [2 * loss for loss, _ in seen] == pytest.approx([double for _, double in seen])
    assert len({loss for loss, _ in seen}) == 3


def _take(program: Any, order: Path, compiles: bool) -> None:
    raise SystemExit(f"{program.framework} {program.batch_size} {compiles}")


def test_a_worker_hands_its_input_to_an_analysis(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_analyzer, "taken", _take, raising=False)
    monkeypatch.setenv("CSRUN_INPUT_ANALYSIS", "order.json")
    monkeypatch.setenv("CSRUN_INPUT_ANALYZER", "input_analyzer:taken")
    for name, value in {"JOB_ID": "a", "JOB_TOKEN": "b", "RANK": "1", "NUM_TASKS": "3"}.items():
        monkeypatch.setenv(f"CSRUN_{name}", value)
    cbtorch.initialize(cs_ip=system.address)
    assert (cm.is_receiver(), cm.is_streamer(), cm.is_master_ordinal()) == (False, True, False)
    assert (cm.get_ordinal(), cm.num_tasks(), cm.num_streamers(), cm.get_streaming_rank()) == (1, 3, 2, 0)
    loader = cbtorch.dataloader(new_loader())
    with pytest.raises(SystemExit, match="torch 16 False"), cbtorch.Session(loader, "train"):
        next(iter(loader))


def test_tasks_meet_and_do_not_wait_for_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"JOB_ID": "a", "JOB_TOKEN": "b", "NUM_TASKS": "3", "LOG_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"CSRUN_{name}", value)

    def at(rank: int, name: str, timeout_s: float) -> list[bytes]:
        monkeypatch.setenv("CSRUN_RANK", str(rank))
        Program.reset()  # each is the first call of its process
        return rendezvous.rendezvous(name, str(rank).encode(), timeout_s)

    for rank in (2, 1):
        with pytest.raises(rendezvous.RendezvousError, match="rank 0 did not come within 0 s"):
            at(rank, "one", 0.0)
    assert at(0, "one", 9.0) == [b"0", b"1", b"2"]
    monkeypatch.setenv("CSRUN_RANK", "2")
    rendezvous.announce_end()
    with pytest.raises(rendezvous.RendezvousError, match="rank 0"):
        at(1, "two", 0.0)
    assert at(0, "two", 9.0) == [b"0", b"1", b""]
    assert "without rank 2, whose program has ended" in caplog.text
    monkeypatch.delenv("CSRUN_LOG_DIR")
    with pytest.raises(rendezvous.RendezvousError, match="expected a job that csrun_wse has started"):
        at(0, "three", 0.0)
    assert rendezvous.rendezvous("three") == [b"", b"", b""]


def worker_of_a_job(monkeypatch: pytest.MonkeyPatch, logs: Path) -> Path:
    """Make this process worker 0 of a job; return where its tasks meet."""
    for name, value in {"JOB_ID": "a", "JOB_TOKEN": "b", "NUM_TASKS": "2", "LOG_DIR": str(logs)}.items():
        monkeypatch.setenv(f"CSRUN_{name}", value)
    monkeypatch.setattr("cstorch.v1.session.session.run_worker", lambda *streamed: None)
    monkeypatch.setenv("CSRUN_RANK", "1")
    directory = rendezvous._directory()
    assert directory is not None
    directory.mkdir(parents=True)
    return directory


def test_tasks_do_not_meet_from_the_loop_to_the_end_of_a_session(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The chief runs steps there while workers stream, so that neither comes to the other's places."""
    directory = worker_of_a_job(monkeypatch, tmp_path)
    (directory / "place").write_bytes(b"9")  # the chief comes to more loops and rendezvous
    monkeypatch.setattr("cstorch.v1.session.core.cb_model._meet", lambda name, payload: [b"met"])
    cbtorch.initialize(cs_ip=system.address)
    loader = cbtorch.dataloader(new_loader())
    for mode in ("train", "eval"):
        with cbtorch.Session(loader, mode):
            assert cm.rendezvous("before the loop", b"mine") == [b"met"]
            assert list(loader) == []
            assert cm.rendezvous("behind the loop", b"mine") == [b"mine"]
        assert cm.rendezvous("behind the session", b"mine") == [b"met"]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_program_of_a_worker_ends_with_its_stream(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    """Unless the chief comes to another loop: what follows its own expects batches."""
    directory = worker_of_a_job(monkeypatch, tmp_path)
    (directory / "place").write_bytes(b"2")
    (directory / "ended-0").touch()
    cbtorch.initialize(cs_ip=system.address)
    loader = cbtorch.dataloader(new_loader())
    with cbtorch.Session(loader, mode):
        assert not list(loader)
    with pytest.raises(SystemExit) as ended, cbtorch.Session(loader, mode):
        list(loader)
    assert not ended.value.code


def test_the_appliance_names_the_call_that_is_missing_before_it() -> None:
    with pytest.raises(SessionError, match="before initialize"):
        cbtorch.core.appliance.ApplianceMode()
    cbtorch.initialize(appliance=True)
    appliance = cbtorch.core.appliance.ApplianceMode(cs_config=ClusterConfig(num_csx=2))
    assert (cm.is_appliance(), appliance.cs_config.num_csx, configuration().options.num_csx) == (True, 1, 2)
    with pytest.raises(SessionError, match=r"compile\(\) is used outside of a loop"):
        appliance.compile()
    training = Training(torch.optim.SGD, lr=0.1)
    calls: list[int] = []
    cm.step_closure(calls.append)(1)
    batches = iter(training.loader)
    training.step(next(batches))
    with pytest.raises(SessionError, match="continues to another batch"):
        next(batches)
    assert calls == []
    appliance.compile(validate_only=True)
    assert calls == [1]


def test_compile_only_stops_after_the_first_step(tmp_path: Path) -> None:
    cbtorch.initialize(compile_only=True, compile_dir=tmp_path / "compiled")
    training = Training(torch.optim.SGD, lr=0.1)
    turns = 0
    with cbtorch.Session(training.loader, "train"):
        for batch in training.loader:
            training.step(batch)
            turns += 1
    assert cbtorch.compile()
    assert turns == 1
    assert len(list((tmp_path / "compiled").glob("cs_*"))) == 1


def test_without_a_system_everything_is_this_cpu() -> None:
    assert not cm.use_cs()
    assert not cm.is_wse_device()
    assert (cm.get_ordinal(), cm.num_tasks(), cm.num_streamers(), cm.num_receivers()) == (0, 1, 1, 1)
    assert cm.is_master_ordinal(local=True)
    assert cm.is_streamer()
    assert cm.is_receiver()
    assert (cm.get_streaming_rank(), cm.get_streaming_batch_size(7)) == (0, 7)
    assert (cm.is_sync_mode(), cm.is_appliance()) == (False, False)
    assert cm.hit_worker_cache_limit("none", "none")[:2] == (False, 0)
    assert cm.device() == torch.device("cpu")
    assert cm.step_closure(lambda x: x + 1)(1) == 2
    assert cm.rendezvous("here", b"payload") == [b"payload"]
    assert cm.mesh_reduce("sum", torch.ones(2), lambda found: found[0] * 2).tolist() == [2.0, 2.0]
    assert set(cm.service_resolver().cluster_spec()) == {"chief", "worker"}
    assert cm.service_resolver().cluster_spec.task().rank == 0
    model = new_model()
    assert cbtorch.module(model) is model
    assert state().modules == [model]


def test_tensors_are_made_and_moved_on_the_device(training: Training) -> None:
    device = cm.device()
    made = [torch.zeros(2, device=device), torch.ones(2).to(device), cm.make_constant(torch.ones(2))]
    assert all(isinstance(x, DeviceTensor) for x in made)
    assert [x.tolist() for x in made] == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    paths: list[list[str]] = []

    def to_cpu(path: list[str], tensor: torch.Tensor) -> torch.Tensor:
        paths.append(path)
        return cm.to_cpu(tensor)

    found = nest.map_xla_tensors(to_cpu, {"a": made[0], "b": [torch.ones(1), 3]})
    assert paths == [["a"]]
    assert not list(nest.visit_xla_tensors(found))
    assert len(list(nest.visit_xla_tensors(made))) == 3


def test_small_names() -> None:
    assert modes.get_modes() == ["train", "eval", "eval_all", "train_and_eval", "inference"]
    assert modes.is_valid(modes.INFERENCE)
    assert not modes.is_valid("test")
    loss = torch.ones(())
    for outputs in (loss, (loss, 3), {"loss": loss}, type("Outputs", (), {"loss": loss})()):
        assert extract_loss(outputs) is loss
    with pytest.raises(SessionError, match="without a loss"):
        extract_loss({"logits": loss})
    state().full_config.matching.kernel.no_dcache_spill_splits = True
    assert state().full_config.matching.kernel.no_dcache_spill_splits
    assert cbtorch.nn.StripPadding()(loss) is loss
    assert cbtorch.nn.Scope("loss").exit(loss) is loss
    cbtorch.enable_debug_name_scope()
    cbtorch.add_debug_name(model := nn.Sequential(nn.Linear(1, 1)), "root")
    assert cbtorch.get_debug_name(model[0]) == "root.0"
    with state().init_tracker.entry("a part"):
        state().init_tracker.start("another")
    state().init_tracker.stop("another")
    assert state().progress_tracker is None
    state().rate_tracker.add(32)
    state().run_step = 2
    assert cm._extract_tracker_details(2)[2] == 16
    assert PyTorchH5Saver is cbtorch.saver.PyTorchH5Saver
    assert cstorch.amp.get_init_params() == {}
    assert cstorch.amp._amp_state.half_dtype == torch.float16
    assert cstorch.utils.extract_loss is extract_loss
    config = RunConfig(total_steps=7, checkpoint_steps=3, fetch_steps=0)
    assert [config.next_fetch(step) for step in range(7)] == [3, 3, 3, 6, 6, 6, 7]
    tracker = RateTracker()
    tracker.add(3)
    assert (tracker._count, tracker._partial_count) == (3, 3)
    assert tracker.rate() > 0
    assert (tracker._count, tracker._partial_count) == (3, 0)
    assert tracker.global_rate() > 0
    assert tracker.global_rate > 0


def test_a_checkpoint_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoint_1.mdl"
    cm.save({"a": torch.ones(2)}, path, post_transfer_callback=lambda held: {**held, "step": 1})
    assert cbtorch.load(path)["step"] == 1
    with pytest.raises(CheckpointError, match="cannot write checkpoint"):
        cm.save({"a": torch.ones(2)}, path / "below")
    assert torch.load(path)["a"].tolist() == [1.0, 1.0]
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint_1.mdl"]


def test_a_checkpoint_of_a_view_has_only_its_elements(tmp_path: Path) -> None:
    whole = torch.arange(1 << 16, dtype=torch.float32)
    cm.save({"a": to_device(whole[:3]), "b": to_device(whole[:4].clone())}, tmp_path / "view.mdl")
    assert (tmp_path / "view.mdl").stat().st_size < 4096
    assert torch.load(tmp_path / "view.mdl")["a"].tolist() == [0.0, 1.0, 2.0]


def test_tied_weights_are_one_tensor_in_a_checkpoint(tmp_path: Path) -> None:
    weight = to_device(torch.zeros(1 << 12))
    cm.save({"a": weight, "b": weight}, tmp_path / "tied.mdl")
    found = torch.load(tmp_path / "tied.mdl")
    assert found["a"].data_ptr() == found["b"].data_ptr()


def test_a_full_disk_is_the_cause_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "a.mdl"
    cm.save({"a": torch.zeros(2)}, path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointError, match=r"File too large; older checkpoints are as they were"):
            cm.save({"a": torch.ones(1 << 20)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == ["a.mdl"]
    assert torch.load(path)["a"].sum() == 0
