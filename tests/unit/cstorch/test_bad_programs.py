"""Impossible programs: each is one error that gives advice."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import cstorch
from cgc.errors import GraphTypeError, UnsupportedOpsError
from cs_compat.startup import end_program
from cs_runtime import exits
from cstorch.errors import (
    ClosureError,
    CompileCallError,
    ConfigureError,
    InputError,
    LoaderError,
    ModelMovedError,
    OptimizerInStepError,
    StepError,
    essence,
)
from cstorch.program import configuration
from cstorch.tracing.device import DeviceTensor
from cstorch.utils.data import DataExecutor, DataLoader, Range

pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.fixture
def model(tmp_path: Path) -> nn.Module:
    """A compiled model of a process that only traces."""
    cstorch.backend("CSX", artifact_dir=tmp_path, validate_only=True)
    return cstorch.compile(nn.Linear(4, 3), "CSX")


def data() -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(
        TensorDataset(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64)), batch_size=4
    )


def run(model: nn.Module, update: Callable[[torch.Tensor], Any], loader: Any = None) -> None:
    """One step with a loss that `update` gets."""

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        update(loss)
        return loss

    for batch in DataLoader(data) if loader is None else loader:
        step(batch)


def with_optimizer(optimizer: Any, schedule: Any = None) -> Callable[[torch.Tensor], None]:
    def update(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()

    return update


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "RMSprop", "RAdam"])
def test_an_optimizer_of_torch_has_a_replacement(model: nn.Module, name: str) -> None:
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    with pytest.raises(OptimizerInStepError, match=rf"{__file__}:\d+: .*make cstorch\.optim\.{name} "):
        run(model, with_optimizer(optimizer))


def test_an_optimizer_of_torch_without_a_replacement(model: nn.Module) -> None:
    optimizer = torch.optim.SparseAdam(model.parameters())
    with pytest.raises(OptimizerInStepError, match=r"SparseAdam cannot .*derive one"):
        run(model, with_optimizer(optimizer))


@pytest.mark.parametrize("scaled", [False, True])
def test_an_optimizer_of_torch_passed_in(model: nn.Module, scaled: bool) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(OptimizerInStepError, match=r"make cstorch\.optim\.AdamW"):
        cstorch.optim.configure_lr_scheduler(optimizer, 0.1)
    scaler = cstorch.amp.GradScaler("dynamic") if scaled else None
    with pytest.raises(OptimizerInStepError, match=r"make cstorch\.optim\.AdamW"):
        run(model, lambda loss: cstorch.amp.optimizer_step(loss, optimizer, scaler))


def test_an_optimizer_of_torch_steps_outside_of_recorded_steps() -> None:
    plain = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    before = plain.weight.detach().clone()
    plain(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(plain.weight, before - 0.1)


def test_an_optimizer_made_before_compile(tmp_path: Path) -> None:
    cstorch.configure(model_dir=tmp_path, validate_only=True)
    model = nn.Linear(4, 3)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    cstorch.compile(model)
    with pytest.raises(OptimizerInStepError, match=r"made before cstorch\.compile.*after compile"):
        run(model, with_optimizer(optimizer))


def test_a_schedule_of_torch(model: nn.Module) -> None:
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with pytest.raises(OptimizerInStepError, match=r"keep their first value.*cstorch\.optim\.lr_scheduler"):
        run(model, with_optimizer(optimizer, schedule))


def test_a_model_that_is_moved_before_compile() -> None:
    with pytest.raises(ModelMovedError, match=r"test_bad_programs.py:\d+: .*moved to 'meta'.*drop \.to\(\)"):
        cstorch.compile(nn.Linear(2, 2).to("meta"), "CSX")


def test_a_model_that_is_moved_to_a_device(model: nn.Module) -> None:
    for move in (lambda: model.to("cuda"), model.cuda, lambda: model.to(torch.device("mps"))):
        with pytest.raises(ModelMovedError, match=r"moved to '(cuda|mps)', expected none"):
            move()
    assert model.to(model.weight.device) is model
    assert model.to("xla").weight.device.type == "xla"
    assert type(model.weight.to("cpu")) is torch.Tensor
    model.cpu()
    with pytest.raises(StepError, match=r"state\.model\.weight is a tensor of cpu, .*remove \.to\(\)"):
        run(model, lambda loss: loss.backward())


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch moves it")
@pytest.mark.parametrize("move", [nn.Module.cuda, lambda model: model.to("cuda")])
def test_a_plain_model_that_is_moved_to_a_gpu(move: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(AssertionError) as caught:
        move(nn.Linear(2, 2))
    assert re.fullmatch(
        r"Torch not compiled with CUDA.*expected none.*drop \.cuda\(\).*", essence(caught.value)
    )


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_in_hdf5_that_torch_load_reads(weights_only: bool, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.mdl"
    cstorch.save({"model": {"weight": torch.ones(2)}}, path)
    with pytest.raises(UnpicklingError) as caught:
        torch.load(path, weights_only=weights_only)
    assert re.search(r"a file in HDF5, expected .* cstorch\.load\(path\)", essence(caught.value))
    path.write_bytes(b"no checkpoint")
    with pytest.raises(UnpicklingError) as caught:
        torch.load(path, weights_only=weights_only)
    assert "HDF5" not in essence(caught.value)


def test_a_program_in_the_launchers_ends_as_others_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("estimator.")]:
        monkeypatch.delitem(sys.modules, name)  # of other tests
    failed: list[BaseException] = []
    monkeypatch.setattr(exits, "_failure_handlers", [failed.append])
    with pytest.raises(ConfigureError) as caught:
        cstorch.backend("CSX", max_checkpoints=0)
    with pytest.raises(SystemExit) as ended:
        end_program(caught.type, caught.value, caught.tb)
    assert ended.value.code == 2
    assert failed == [caught.value]
    assert re.search(
        r"error: max_checkpoints is 0.*\n  at .*test_bad_programs\.py:\d+\n", capsys.readouterr().err
    )


def test_a_loader_that_is_not_wrapped(model: nn.Module) -> None:
    with pytest.raises(
        StepError, match=r"outside of a loop over a DataLoader, expected `for batch in cstorch"
    ):
        run(model, lambda loss: loss.backward(), data())
    with pytest.raises(
        LoaderError, match=r"not wrapped using a cstorch.utils.data.DataLoader: got a DataLoader"
    ):
        DataExecutor(data())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got a list"):
        DataExecutor([1])  # type: ignore[arg-type]


def test_a_loss_in_64_bits_is_refused_with_its_line(model: nn.Module) -> None:
    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        wide = torch.ones(3, dtype=torch.float64)
        loss = functional.cross_entropy(model(batch[0]) * wide, batch[1])
        loss.backward()
        with torch.no_grad():
            model.weight.sub_(model.weight.grad)
        return loss

    expected = r"^1 tensor .*\n  aten\.mul\.Tensor: line .*bad_programs\.py:\d+"
    with pytest.raises(GraphTypeError, match=expected):
        list(map(step, DataLoader(data)))


def test_a_batch_that_is_not_of_the_loop(model: nn.Module) -> None:
    def step(batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    traced, loader = cstorch.trace(step), DataLoader(data)
    for _ in loader:
        with pytest.raises(StepError, match=r"tensors of this CPU instead of the batch of the loop"):
            traced(next(iter(data())))
        with pytest.raises(StepError, match=r"gets the DataLoader instead of the batch"):
            traced(loader)


def test_an_unsupported_operation_is_listed_before_what_summaries_make_of_its_result(
    model: nn.Module,
) -> None:
    def update(loss: torch.Tensor) -> None:
        found = torch.special.airy_ai(loss.detach())
        cstorch.summarize_scalar("found", found)
        cstorch.summarize_tensor("further", torch.special.bessel_j0(2 * found))

    with pytest.raises(UnsupportedOpsError) as caught:
        run(model, update)
    head, first, second, cure = str(caught.value).splitlines()
    assert head.startswith("2 operations")
    assert "airy_ai" in first
    assert "bessel_j0" in second
    assert "what to do" in cure


def test_summaries_and_values_of_steps_outside_of_a_loop() -> None:
    with pytest.raises(ClosureError, match="'a' is summarized outside of a loop"):
        cstorch.summarize_scalar("a", torch.tensor(1.0))
    with pytest.raises(ClosureError, match="outside of a loop over a DataLoader with a tensor of a step"):
        cstorch.step_closure(print)(DeviceTensor(torch.empty((), device="meta")))


def test_backends(tmp_path: Path) -> None:
    with pytest.raises(ConfigureError, match="there is no backend yet"):
        cstorch.current_backend()
    for kind, text in (("GPU", "'GPU' is unavailable, expected CSX or CPU"), ("TPU", "backend is 'TPU'")):
        with pytest.raises(CompileCallError, match=text):
            cstorch.backend(kind)
    with pytest.raises(
        ConfigureError, match="unknown argument 'color'; expected one of backend_type, artifact_dir"
    ):
        cstorch.backend("CSX", color=1)
    with pytest.raises(ConfigureError, match=r"recorded once; choose with torch\.where"):
        cstorch.backend("CSX", retrace_every_iteration=True)
    with pytest.raises(ConfigureError, match="max_checkpoints is 0, expected 1 or more"):
        cstorch.backend("CPU", max_checkpoints=0)
    made = cstorch.backend("CPU", artifact_dir=tmp_path, sync_batchnorm=True, micro_batch_size=4)
    assert cstorch.backend() is made is cstorch.current_backend()
    with pytest.raises(ConfigureError, match=r"Cannot instantiate multiple backends.*has CPU already"):
        cstorch.backend("CSX")
    with pytest.raises(ConfigureError, match=r"is for backend 'CSX', but this process computes on CPU"):
        cstorch.compile(nn.Linear(1, 1), "CSX")


@pytest.mark.parametrize(
    ("name", "execution"), [("WSE_WS", "weight_streaming"), ("wse_pipeline", "pipelined"), ("CSX", "auto")]
)
def test_the_name_of_a_backend_may_say_the_execution(tmp_path: Path, name: str, execution: str) -> None:
    cstorch.configure(model_dir=tmp_path, validate_only=True)
    cstorch.compile(nn.Linear(1, 1), name)
    assert configuration().options.execution == execution


def test_an_execution_that_is_configured_has_precedence(tmp_path: Path) -> None:
    cstorch.configure(model_dir=tmp_path, validate_only=True, execution="pipelined")
    cstorch.compile(nn.Linear(1, 1), "WSE_WS")
    assert configuration().options.execution == "pipelined"


def test_a_process_that_is_configured_twice(tmp_path: Path) -> None:
    cstorch.configure(model_dir=tmp_path, validate_only=True)
    with pytest.raises(ConfigureError, match="called twice, expected once"):
        cstorch.configure(model_dir=tmp_path)
    with pytest.raises(ConfigureError, match="expected once"):
        cstorch.backend("CSX", artifact_dir=tmp_path)


def test_names_that_are_not_there() -> None:
    for module, name in ((cstorch, "cstorch"), (cstorch.optim, r"cstorch\.optim")):
        with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
            _ = module.nonsense


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cstorch.utils.data.Schedule([0]), "got 0 in a Schedule, expected a Range"),
        (lambda: DataExecutor(DataLoader(data), checkpoint_steps=-1), "got -1 as steps"),
        (lambda: cstorch.utils.data.Schedule([Range(0, 9), Range(8, 10)]), "overlap"),
        (lambda: cstorch.utils.data.Range(5, 3), "from 5 to 3 by 1, expected"),
        (lambda: cstorch.utils.data.SyntheticDataset({"x": 3}), "the sample has 3, expected tensors"),
        (lambda: cstorch.utils.data.SyntheticDataset([]), "the sample is empty"),
        (lambda: cstorch.utils.data.infer_batch_size([torch.ones(2), torch.ones(3)]), r"dimensions \[2, 3\]"),
        (lambda: cstorch.utils.data.compute_num_steps([1], num_steps=-1), "num_steps is -1"),
        (lambda: cstorch.utils.data.compute_num_steps(iter([]), num_epochs=1), "does not know its length"),
        (lambda: DataExecutor(DataLoader(data), num_steps=0), "num_steps is 0"),
    ],
)
def test_numbers_that_cannot_be(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        call()
