"""Executors on a CS system and on this CPU: steps, checkpoints, folders, summaries, one inside of another."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import cstorch
from csrun.tasks.roles import TaskInfo
from cstorch.distributed import ClusterConfig
from cstorch.errors import ConfigureError, InputError
from cstorch.loop import resources
from cstorch.loop.execution import Training
from cstorch.loop.steps import _Summary
from cstorch.program import Program, configuration
from cstorch.utils.data import DataExecutor, DataLoader, Range, Schedule
from cstorch.utils.tensorboard import SummaryReader, SummaryWriter
from tests.systems import RunningSystem


def values_by_step(events: Iterable[Any]) -> dict[int, float]:
    """The values of a scalar that `SummaryReader.read_scalar` has read."""
    return {event.step: event.value for event in events}


@pytest.fixture(params=["CSX", "CPU"])
def model(
    request: pytest.FixtureRequest, fresh_process: None, system: RunningSystem, tmp_path: Path
) -> nn.Module:
    """Compile a model for a backend, as in a new process."""
    cluster = ClusterConfig(mgmt_address=system.address)
    cstorch.backend(request.param, artifact_dir=tmp_path / "artifacts", cluster_config=cluster)
    torch.manual_seed(1)
    return cstorch.compile(nn.Linear(3, 2))


def data(batches: int = 5) -> torch.utils.data.DataLoader:
    x = torch.randn(4 * batches, 3, generator=torch.Generator().manual_seed(2))
    return torch.utils.data.DataLoader(TensorDataset(x, x[:, :2].argmax(1)), batch_size=4)


def step_of(model: nn.Module) -> Any:
    """A step that summarizes its rate and the gradient of the bias."""
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.5)
    schedule = cstorch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5, 10, 0.5)

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        cstorch.summarize_tensor("gradient", model.bias.grad)
        optimizer.step()
        schedule.step()
        cstorch.summarize_scalar("rate", schedule.get_last_lr()[0])
        return loss

    return step


def by_torch(steps: int, skipped: int = 0) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and gradients of the bias of the same training without its first batches, written by hand."""
    torch.manual_seed(1)
    model, losses, gradients = nn.Linear(3, 2), [], []
    batches = [*data(), *data(), *data()][skipped:]
    for i in range(steps):
        model.zero_grad()
        loss = functional.cross_entropy(model(batches[i][0]), batches[i][1])
        loss.backward()
        losses.append(loss.item())
        gradients.append(model.bias.grad.clone())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * 0.5 ** (i / 10) * parameter.grad
    return losses, gradients


def test_the_loss_of_a_run_in_16_bits_is_the_unscaled_one(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    """The toolkit's own lines show it, though the step has the scaled loss in float32."""
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.5)

    @cstorch.trace
    def step(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.to(torch.bfloat16), loss * 1000

    with caplog.at_level("INFO", logger="cs_runtime"):
        for batch in DataExecutor(DataLoader(data), num_steps=2):
            step(batch)
    (shown,) = [float(x) for text in caplog.messages for x in re.findall(r"step 1: loss = ([\d.]+)", text)]
    assert shown == pytest.approx(by_torch(1)[0][0], rel=1e-2)


def test_closures_get_values_without_gradients(model: nn.Module) -> None:
    """A closure may call `numpy()` of the loss that a step returns on both backends."""
    found: list[float] = []

    @cstorch.trace
    def step(batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": functional.cross_entropy(model(batch[0]), batch[1])}

    note = cstorch.step_closure(lambda outputs: found.append(float(outputs["loss"].numpy())))
    for batch in DataExecutor(DataLoader(data), num_steps=1):
        note(step(batch))
    assert found == pytest.approx(by_torch(1)[0], rel=1e-5)


def test_a_rate_is_the_one_that_the_update_used(model: nn.Module) -> None:
    """A closure, or what the step returns, has the rate from before the schedule's step."""
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.5)
    schedule = cstorch.optim.lr_scheduler.LinearLR(optimizer, 0.5, 0.1, 4)
    noted: list[float] = []
    returned: list[float] = []
    note = cstorch.step_closure(lambda rate: noted.append(rate.item()))
    note_returned = cstorch.step_closure(lambda rate: returned.append(rate.item()))

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        note(optimizer.param_groups[0]["lr"])
        (rate,) = schedule.get_last_lr()
        schedule.step()
        return rate

    for batch in DataExecutor(DataLoader(data), num_steps=3):
        note_returned(step(batch))
    assert noted == returned == pytest.approx([0.5, 0.4, 0.3])
    assert float(schedule.get_last_lr()[0]) == pytest.approx(0.2)


def test_steps_checkpoints_and_summaries(model: nn.Module, tmp_path: Path) -> None:
    """Twelve steps over an input of five batches, with a checkpoint at 3, 6 and 10 and after the last."""
    writer, step = SummaryWriter(log_dir=tmp_path / "events"), step_of(model)
    losses: list[float] = []
    saved: list[int] = []
    rates: list[float] = []

    @cstorch.step_closure
    def note(loss: torch.Tensor) -> None:
        losses.append(loss.item())
        tracker = executor.profiler.rate_tracker
        rates.extend((tracker.rate, tracker.global_rate, tracker.global_rate()))

    @cstorch.checkpoint_closure
    def save(number: int) -> None:
        state = cstorch.load(save_to(tmp_path / f"{number}.mdl", model))
        assert state["weight"].shape == (2, 3)
        saved.append(number)

    save(0)  # before the loop values exist: it runs immediately

    executor = DataExecutor(
        DataLoader(data),
        num_steps=12,
        checkpoint_steps=Schedule([Range(3, 7, 3), Range(10, 11)]),
        writer=writer,
    )
    assert len(executor) == 12
    assert executor.cs_config.mgmt_address is None  # of no configuration, the values without one
    for number, batch in enumerate(executor, start=1):
        assert cstorch.current_executor() is executor
        note(step(batch))
        save(number)
    writer.close()
    assert cstorch.current_executor() is None
    expected, gradients = by_torch(12)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert saved == [0, 4, 7, 11]
    assert len(rates) == 36
    assert min(rates) > 0
    assert executor.profiler.global_rate() > 0
    assert executor.profiler.total_samples() == executor.profiler.rate_tracker.total_count == 12 * 4
    assert executor.profiler.total_time() > 0
    assert executor.profiler.rate_tracker.rate() == executor.profiler.rate_tracker.rate
    events = SummaryReader(tmp_path / "events")
    assert events.scalar_names() == {"rate"}
    assert events.tensor_names() == {"gradient"}
    rates = values_by_step(events.read_scalar("rate"))
    assert rates == pytest.approx({i: 0.5 * 0.5 ** (i / 10) for i in range(1, 13)}, rel=1e-6)
    found = events.read_tensor("gradient")
    assert list(found) == list(range(1, 13))
    np.testing.assert_allclose([found[i + 1].tensor for i in range(12)], torch.stack(gradients), 1e-4, 1e-6)
    fourth = events.read_tensor("gradient", step=4)
    assert fourth.step == 4
    assert fourth.utctime.year > 2000
    assert type(fourth).from_dict(fourth.to_dict()) == fourth
    assert [len(written) for written in events.read_tensor("gradient", latest_only=False).values()] == [
        1
    ] * 12
    assert events.read_tensor("gradient", step=40) is None
    assert events.read_scalar("rate", step=4).value == pytest.approx(rates[4])
    with pytest.raises(RuntimeError, match="there is no scalar 'other', expected one of rate"):
        events.read_scalar("other")
    assert SummaryReader([tmp_path], filter="other").scalar_names() == set()


def save_to(path: Path, model: nn.Module) -> Path:
    cstorch.save(model.state_dict(), path)
    return path


def test_a_loss_with_a_gradient_is_summarized_without_a_warning(tmp_path: Path) -> None:
    torch.set_warn_always(True)  # PyTorch warns of the float of such a tensor once in a process
    try:
        with warnings.catch_warnings(), SummaryWriter(log_dir=tmp_path) as writer:
            warnings.simplefilter("error")
            _Summary("scalar", torch.tensor(2.5, requires_grad=True)).write(writer, "loss", 1)
    finally:
        torch.set_warn_always(False)
    assert SummaryReader(tmp_path).read_scalar("loss", step=1).value == 2.5


def test_an_evaluation_inside_of_a_training(model: nn.Module, tmp_path: Path) -> None:
    """It sees the current parameters; the training continues with its own batches and summaries."""
    writer, step = SummaryWriter(log_dir=tmp_path / "events", base_step=100), step_of(model)
    losses: list[float] = []
    evaluated: list[float] = []
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    note_evaluated = cstorch.step_closure(lambda loss: evaluated.append(loss.item()))

    @cstorch.trace
    @torch.no_grad()
    def evaluate(batch: Any) -> torch.Tensor:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        cstorch.summarize_scalar("evaluated", loss)
        return loss

    @cstorch.checkpoint_closure
    def refuse() -> None:
        raise AssertionError("this loop has no checkpoint steps")

    evaluation = SummaryWriter(log_dir=tmp_path / "evaluation")
    training = DataExecutor(DataLoader(data), num_steps=6, checkpoint_steps=3, writer=writer)
    for number, batch in enumerate(training, start=1):
        note(step(batch))
        if number % 3 == 0:
            model.eval()
            for inner in DataExecutor(DataLoader(data, 3), num_steps=3, writer=evaluation):
                note_evaluated(evaluate(inner))
                refuse()
            model.train()
    writer.close()
    assert losses == pytest.approx(by_torch(6)[0], rel=1e-5)
    assert len(evaluated) == 6
    evaluation.close()
    summarized = values_by_step(SummaryReader(tmp_path / "evaluation").read_scalar("evaluated"))
    assert summarized == pytest.approx(dict(enumerate(evaluated[3:], start=1)), rel=1e-6)
    assert sum(evaluated[3:]) < sum(evaluated[:3])
    rates = values_by_step(SummaryReader(tmp_path / "events").read_scalar("rate"))
    assert list(rates) == list(range(101, 107))


class Endless(torch.utils.data.IterableDataset):
    """Samples without a number of them."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from itertools.cycle(data().dataset)


def test_an_input_without_a_length_and_a_loop_that_is_left_at_a_checkpoint(model: nn.Module) -> None:
    losses: list[float] = []
    step = step_of(model)
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    loader = DataLoader(lambda: torch.utils.data.DataLoader(Endless(), batch_size=4))
    for steps, last in ((10, 4), (2, 2)):
        for number, batch in enumerate(DataExecutor(loader, num_steps=steps, checkpoint_steps=4), start=1):
            note(step(batch))
            if number == last:
                break
    assert losses == pytest.approx(by_torch(6)[0], rel=1e-5)


def test_the_next_steps_run_while_the_program_uses_the_state(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    begin = Training.begin
    monkeypatch.setattr(Training, "begin", lambda run, ahead: begun.append(ahead) or begin(run, ahead))
    step = step_of(model)
    at_save: list[bool] = []

    @cstorch.checkpoint_closure
    def save(number: int) -> None:
        count = len(begun)
        cstorch.save({"weight": model.weight}, tmp_path / f"checkpoint_{number}.mdl")
        at_save.append(len(begun) > count)

    for number, batch in enumerate(DataExecutor(DataLoader(data), num_steps=6, checkpoint_steps=2), start=1):
        step(batch)
        save(number)
    assert at_save == ([False] * 3 if Program.current().on_cpu else [True, True, False])
    saved = [cstorch.load(tmp_path / f"checkpoint_{number}.mdl")["weight"] for number in (2, 4, 6)]
    assert not torch.equal(saved[0], saved[1])
    assert torch.equal(saved[2], model.weight.to("cpu"))


def test_workers_of_a_loop_are_started_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The workers of `cs_config` are used; none where the program runs on this CPU or is only compiled."""
    started: list[int] = []

    class Workers:
        def __init__(self, number: int, directory: Path, task: TaskInfo) -> None:
            started.append(number)
            self.task = dataclasses.replace(task, num_tasks=number + 1)

    monkeypatch.setattr(resources, "LocalWorkers", Workers)
    wanted = ClusterConfig(num_workers_per_csx=3)
    for kind, settings in (("CPU", {}), ("CSX", {"compile_only": True}), ("CSX", {})):
        Program.reset()
        cstorch.backend(kind, artifact_dir=tmp_path, **settings)
        for _ in range(2):
            with DataExecutor(DataLoader(data), cs_config=wanted)._running():
                pass
    Program.reset()
    assert started == [3]


def test_a_system_of_the_program_has_as_many_as_share_a_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Programs that name no system also ask for several, as guides do with `--num_csx=2`."""
    started: list[tuple[str, int]] = []

    class System:
        def __init__(self, log_file: Path, wafers: int) -> None:
            started.append((log_file.name, wafers))
            self.address = f"127.0.0.1:{9000 + wafers}"

        def end(self) -> None:
            pass

    monkeypatch.setattr(resources, "EmbeddedSystem", System)
    monkeypatch.delenv("CS_IP", raising=False)
    Program.reset()
    cstorch.backend("CSX", artifact_dir=tmp_path, cluster_config=ClusterConfig(num_csx=2))
    assert resources.system_address() == "127.0.0.1:9002"
    with Program.current().adjust_configuration(num_csx=1):
        assert resources.system_address() == resources.system_address() == "127.0.0.1:9001"
    Program.reset()
    assert started == [("cs_system_2.log", 2), ("cs_system.log", 1)]


@pytest.mark.parametrize(("given", "size"), [(4, 4), ("auto", 2), ("explore", 2), (None, 2)])
def test_a_loop_has_its_own_micro_batch_size_or_that_of_the_backend(
    given: Any, size: int, tmp_path: Path
) -> None:
    Program.reset()
    cstorch.backend("CSX", artifact_dir=tmp_path, compile_only=True, micro_batch_size=2)
    try:
        with DataExecutor(DataLoader(data), micro_batch_size=given)._running():
            assert configuration().options.micro_batch_size == size
        assert configuration().options.micro_batch_size == 2
    finally:
        Program.reset()


def test_a_loop_has_the_micro_batch_size_of_the_flag_that_is_set_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs set the flag for a training, and take it back for the validation."""
    Program.reset()
    caplog.set_level("INFO", "cstorch")
    performance = cstorch.backends.csx.performance
    monkeypatch.setattr(performance, "micro_batch_size", 4)
    monkeypatch.setattr(performance, "flag_of_this_test", 3)
    assert [r.getMessage() for r in caplog.records] == [
        "backends.csx.performance.flag_of_this_test has no effect on this system"
    ]
    cstorch.backend("CSX", artifact_dir=tmp_path, compile_only=True, micro_batch_size=2)
    try:
        with DataExecutor(DataLoader(data))._running():
            assert configuration().options.micro_batch_size == 4
        performance.micro_batch_size = None
        with DataExecutor(DataLoader(data))._running():
            assert configuration().options.micro_batch_size == 2
    finally:
        Program.reset()


def test_without_gradient_accumulation_a_micro_batch_size_does_not_count(tmp_path: Path) -> None:
    Program.reset()
    cstorch.backend(
        "CSX", artifact_dir=tmp_path, compile_only=True, micro_batch_size=2, use_cs_grad_accum=False
    )
    try:
        assert configuration().options.micro_batch_size == "auto"
        with DataExecutor(DataLoader(data), micro_batch_size=4)._running():
            assert configuration().options.micro_batch_size == "auto"
    finally:
        Program.reset()


def test_a_backend_chooses_how_a_step_is_executed(tmp_path: Path) -> None:
    Program.reset()
    chosen = {"execution": "weight_streaming", "recompute": "all"}
    cstorch.backend("CSX", artifact_dir=tmp_path, compile_only=True, **chosen)
    assert configuration().options.execution == "weight_streaming"
    assert configuration().options.recompute == "all"
    Program.reset()
    with pytest.raises(ConfigureError, match="expected one of auto, pipelined, weight_streaming"):
        cstorch.backend("CSX", artifact_dir=tmp_path, execution="streaming")
    cstorch.backend("CSX", artifact_dir=tmp_path, compile_only=True, num_replicas="auto")
    assert (configuration().options.execution, configuration().options.num_replicas) == ("auto", "auto")
    Program.reset()


def test_a_position_in_the_input_is_saved_and_loaded(model: nn.Module) -> None:
    losses: list[float] = []
    step = step_of(model)
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    for batch in DataExecutor(DataLoader(data), num_steps=3):
        note(step(batch))
    assert DataLoader(data).state_dict() == {"steps": 3}
    loader = DataLoader(data)
    loader.load_state_dict({"steps": 4})
    x, y = list(data())[4]
    expected = functional.cross_entropy(x @ model.weight.detach().cpu().T + model.bias.detach().cpu(), y)
    for batch in DataExecutor(loader, num_steps=1):
        note(step(batch))
    assert losses[-1] == pytest.approx(expected.item(), rel=1e-5)


def test_a_repeated_executor_continues(model: nn.Module) -> None:
    losses: list[float] = []
    step = step_of(model)
    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    executor = DataExecutor(DataLoader(data), num_steps=4)
    for _ in range(3):
        for batch in executor:
            note(step(batch))
    assert losses == pytest.approx(by_torch(12)[0], rel=1e-5)


def test_random_numbers_of_the_input_are_the_same_on_both(model: nn.Module) -> None:
    """An order that torch draws, in the input function and after it."""

    def shuffled() -> torch.utils.data.DataLoader:
        x = torch.randn(16, 3)
        return torch.utils.data.DataLoader(TensorDataset(x, x[:, :2].argmax(1)), batch_size=4, shuffle=True)

    found: list[float] = []
    note = cstorch.step_closure(lambda x: found.extend(x.flatten().tolist()))

    @cstorch.trace
    @torch.no_grad()
    def look(batch: Any) -> torch.Tensor:
        note(batch[0] * 1.0)
        return functional.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(9)
    model.eval()
    for batch in DataExecutor(DataLoader(shuffled), num_steps=6):
        look(batch)
        torch.rand(3)  # the program's own numbers are its own
    torch.manual_seed(9)
    loader = shuffled()
    torch.manual_seed(10)  # the order has its own random numbers, so that workers may read in different ones
    expected = [batch[0] for _ in range(2) for batch in loader][:6]
    assert found == torch.stack(expected).flatten().tolist()


def test_a_training_logs_its_progress_on_either(
    model: nn.Module, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    step, executor = step_of(model), DataExecutor(DataLoader(data), num_steps=100, checkpoint_steps=50)
    with caplog.at_level("INFO", logger="cs_runtime"):
        for number, batch in enumerate(executor, start=1):
            step(batch)
            if number == 50:
                cstorch.save({"model": model.state_dict()}, tmp_path / "at_50.mdl")
        lines = [text for text in caplog.messages if text.startswith("global step ")]
    assert [line.partition(":")[0] for line in lines] == ["global step 1", "global step 100"]
    assert "; of 100" in lines[0]
    assert ": loss = 0." in lines[1]
    assert "; of 100; checkpoint 50" in lines[1]


def test_an_executor_counts_its_iterations(model: nn.Module) -> None:
    step = step_of(model)
    executor = DataExecutor(DataLoader(data), num_steps=3)
    seen = []
    counted: list[int] = []
    count = cstorch.step_closure(lambda: counted.append(executor.user_iteration))
    for batch in executor:
        step(batch)
        count()
        seen.append((executor.iteration, executor.is_initial_step, executor.on_final_iteration))
    assert seen == [(0, True, False), (1, False, False), (2, False, True)]
    assert counted == [1, 2, 3]
    assert executor.artifact_dir is not None
    assert executor.artifact_dir.is_dir()


class Restartable(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """A loader of a program that keeps its position."""

    def state_dict(self) -> dict[str, Any]:
        return {"streamed": cstorch.distributed.get_worker_state().samples_streamed}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        raise AssertionError("the toolkit skips batches itself")

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        return {"samples_streamed": sum(state["streamed"] for state in worker_states)}

    def deaggregate_state_dict(self, aggregated: dict[str, Any], strict: bool = True) -> dict[str, Any]:
        return aggregated


def test_a_loader_reports_its_position(model: nn.Module) -> None:
    first = DataLoader(lambda: Restartable(data().dataset, batch_size=4))
    second = DataLoader(data)
    assert second.id == first.id + 1
    assert isinstance(first.dataloader, Restartable)
    assert first.is_restartable
    assert not second.is_restartable
    step = step_of(model)
    for batch in DataExecutor(first, num_steps=3):
        step(batch)
    assert first.state_dict() == {"samples_streamed": 12, "steps": 3}
    assert second.state_dict() == {"steps": 3}
    first.load_state_dict({"samples_streamed": 8, "__version__": 1})  # as the original saves it
    assert first.state_dict() == {"samples_streamed": 8, "steps": 3}
    first.load_state_dict({"all_worker_states": [{"samples_streamed": 16, "shard_index": i} for i in (0, 1)]})
    assert first.state_dict() == {"samples_streamed": 32, "steps": 3}
    assert second.state_dict() == {"steps": 3}
    second.load_state_dict({}, strict=False)
    with pytest.raises(InputError, match=r"state of the input has \['x'\]"):
        second.load_state_dict({"x": 1})


def test_samples_are_skipped_and_steps_are_not(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    """A program may add to the samples of a loaded state; rates are those of the steps."""
    loader = DataLoader(lambda: Restartable(data().dataset, batch_size=4))
    loader.load_state_dict({"samples_streamed": 13}, strict=False)
    assert "continues 1 samples before the loaded position" in caplog.text
    step = step_of(model)
    losses: list[float] = []
    note = cstorch.step_closure(lambda loss: losses.append(float(loss)))
    for steps in (4, 2):  # the second loop continues
        for batch in DataExecutor(loader, num_steps=steps):
            note(step(batch))
    assert losses == pytest.approx(by_torch(6, skipped=3)[0], rel=1e-5)
    assert loader.state_dict() == {"samples_streamed": 4 * 9, "steps": 6}


def test_a_backend_has_the_attributes_that_programs_read(model: nn.Module) -> None:
    backend = cstorch.current_backend(raise_warning=False)
    assert backend is not None
    assert backend.is_e2e_execution
    assert not backend.is_tracing
    assert backend.cluster.start_workflow(lock_resources=True) is False
    assert backend.cluster_config is backend.cluster.config
    assert backend.cluster.config.num_csx == 1
    traced = []

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        traced.append(backend.is_tracing)
        return model(batch[0]).mean()

    for batch in DataExecutor(DataLoader(data), num_steps=1):
        step(batch)
    assert traced == [bool(backend.is_csx)]


def test_an_evaluation_has_the_steps_of_a_new_run(model: nn.Module) -> None:
    """At the step that the training ended at: `max_steps` is its budget."""
    steps = {"num_steps": 3, "max_steps": 5, "initial_step": 5}
    assert len(DataLoader(data, **steps)) == 3
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.5)
    assert len(DataLoader(data, **steps)) == 0
    with torch.no_grad():
        assert len(DataLoader(data, **steps)) == 3
    model.eval()
    assert len(DataLoader(data, max_steps=5, initial_step=5)) == 5
    assert optimizer.param_groups


def test_a_schedule_that_is_not_saved_continues_with_its_optimizer(model: nn.Module) -> None:
    """It counts the steps of the optimizer's state; one whose state is loaded afterwards has its own."""

    def made() -> tuple[Any, Any]:
        optimizer = cstorch.optim.SGD(model.parameters(), lr=0.5)
        parts = [
            cstorch.optim.lr_scheduler.LinearLR(optimizer, 0.0, 0.5, 4),
            cstorch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5, 10, 0.5),
        ]
        return optimizer, cstorch.optim.lr_scheduler.SequentialLR(optimizer, parts, [4])

    optimizer, schedule = made()

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    for batch in DataLoader(data, num_steps=6):
        step(batch)
    saved, rate = optimizer.state_dict(), float(schedule.get_last_lr()[0])
    assert rate == pytest.approx(0.5 * 0.5**0.2)
    again, continued = made()
    again.load_state_dict(saved)
    assert int(continued.last_epoch) == 6
    assert float(again.param_groups[0]["lr"]) == rate
    schedule.step()
    continued.step()
    assert float(continued.get_last_lr()[0]) == pytest.approx(float(schedule.get_last_lr()[0]))
    _, other = made()
    continued.load_state_dict(other.state_dict())
    assert int(continued.last_epoch) == 0


def test_schedules_are_data_and_ranges_can_be_moved() -> None:
    every = Schedule([Range(start=9, step=10, end=25, include_last=True)])
    assert dataclasses.asdict(every) == {
        "intervals": [{"start": 9, "end": 25, "step": 10, "include_last": True}]
    }
    moved = copy.copy(every.intervals[0])
    moved.start = moved.next_immediate_step(12)
    moved.end = 40
    assert list(moved) == [19, 29, 39]
    assert list(every) == [9, 19, 24]


def test_equal_cluster_configurations_are_one_key() -> None:
    first = ClusterConfig(mgmt_address="127.0.0.1:1", job_labels=["a=b"])
    second = ClusterConfig(mgmt_address="127.0.0.1:1", job_labels=["a=b"])
    assert {first: 1, second: 2, ClusterConfig(): 3} == {second: 2, ClusterConfig(): 3}


def test_a_compiled_model_knows_its_device(model: nn.Module) -> None:
    backend = cstorch.current_backend()
    assert backend is not None
    assert model.device == backend.torch_device
    assert backend._impl is backend


def test_a_distributed_sampler_as_a_batch_sampler(model: nn.Module) -> None:
    records = data(4).dataset

    def input_fn() -> torch.utils.data.DataLoader[Any]:
        batches = cstorch.utils.data.DistributedSampler(records, seed=3, batch_size=4)
        return torch.utils.data.DataLoader(records, batch_sampler=batches)

    def plain() -> torch.utils.data.DataLoader[Any]:
        order = cstorch.utils.data.DistributedSampler(records, seed=3, batch_size=4)
        return torch.utils.data.DataLoader(records, batch_size=4, sampler=order)

    loader, expected = DataLoader(input_fn), DataLoader(plain)
    assert len(loader.dataloader) == len(expected.dataloader) == 4
    for ours, theirs in itertools.islice(zip(loader.endless(), expected.endless(), strict=False), 9):
        assert torch.equal(ours[0], theirs[0])


def test_an_executor_is_a_context(model: nn.Module, tmp_path: Path) -> None:
    """The folder exists from the start of the block; the loop in it makes no other one."""
    step = step_of(model)
    with DataExecutor(DataLoader(data), num_steps=2) as executor:
        assert cstorch.current_executor() is executor
        folder = executor.artifact_dir
        for batch in executor:
            step(batch)
        assert executor.artifact_dir == folder
    assert cstorch.current_executor() is None
    assert [path.name for path in (tmp_path / "artifacts" / "executors").iterdir() if path.is_dir()].count(
        "000001"
    )
    assert not (tmp_path / "artifacts" / "executors" / "000002").exists()
