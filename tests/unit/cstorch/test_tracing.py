"""Allowed and refused operations on tensors of the device in a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cgc.errors import GraphImportError
from cstorch.errors import RandomOutsideError, TensorReadError, TensorWriteError, ValueUnavailableError
from cstorch.tracing.device import DeviceTensor, to_device
from cstorch.tracing.recording import Recording
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import StepTracing, TracedStep, trace

from .conftest import BothWays, run_compiled

Run = Callable[..., BothWays]


def traced(step: Callable[..., Any], *sizes: int, model: nn.Module | None = None) -> TracedStep:
    """Traces a step with one tensor of a batch, of these sizes."""
    x = DeviceTensor(torch.ones(sizes))
    modules = [] if model is None else [model]
    return trace(lambda: step(x), [x], {} if model is None else model_state(model), modules)


class Buffers(nn.Module):
    """Tensors to write into."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.arange(12.0).reshape(3, 4))
        self.register_buffer("vector", torch.arange(6.0))
        self.matrix: torch.Tensor
        self.vector: torch.Tensor


def _slices(b: Buffers, x: torch.Tensor) -> None:
    b.matrix[1:, ::2] = x[:2, :2]
    b.matrix[0].mul_(2)
    b.vector[-1] += 5


def _permuted(b: Buffers, x: torch.Tensor) -> None:
    b.matrix.permute(1, 0)[2].add_(x[0, :3])
    b.matrix.t().copy_(b.matrix.t() * 2)
    b.matrix.transpose(0, 1).view(4, 3)[0].zero_()


def _strided(b: Buffers, x: torch.Tensor) -> None:
    b.matrix.as_strided((2, 2), (5, 1), 1).mul_(-1)
    torch.as_strided(b.vector, (3,), (2,)).add_(x[0, :3])


def _viewed(b: Buffers, x: torch.Tensor) -> None:
    flat = b.matrix.view(-1)
    flat[3:7].fill_(9)
    b.matrix.reshape(2, 6)[1].sub_(1)
    flat.unsqueeze(0).squeeze(0)[0] = x.sum()


def _expanded(b: Buffers, x: torch.Tensor) -> None:
    wide = b.vector[:1].expand(4)
    b.matrix += wide
    b.vector.expand(2, 6)[0, 0].add_(1)


def _diagonal(b: Buffers, x: torch.Tensor) -> None:
    b.matrix.diagonal().copy_(x[0, :3])
    b.matrix[[0, 2], [1, 1]] = -3.0
    b.matrix.index_add_(0, torch.tensor([2, 0]), x[:2])


def _masked(b: Buffers, x: torch.Tensor) -> None:
    b.matrix[b.matrix > 5] = 0
    b.matrix.masked_fill_(x > 0.5, -1)
    b.vector.clamp_(1, 4)


def _chunks(b: Buffers, x: torch.Tensor) -> None:
    left, right = b.matrix.chunk(2, dim=1)
    left.add_(right)
    for row in b.matrix.unbind(0):
        row.mul_(row[0].clone())
    torch.swapaxes(b.matrix, 0, 1)[1:3].neg_()


@pytest.mark.parametrize(
    "write", [_slices, _permuted, _strided, _viewed, _expanded, _diagonal, _masked, _chunks]
)
def test_writes_through_views_are_seen_by_all(both_ways: Run, write: Callable[..., None]) -> None:
    def step(model: Buffers, x: torch.Tensor) -> torch.Tensor:
        row, everything = model.matrix[0], model.matrix.view(12)
        write(model, x)
        return (row.sum() + 2 * everything.sum() + model.vector.sum()).clone()

    torch.manual_seed(1)
    found = both_ways(Buffers(), step, (torch.rand(3, 4),), (torch.rand(3, 4),))
    np.testing.assert_allclose(found.compiled.values, found.eager, rtol=1e-6)
    for name in ("matrix", "vector"):
        got = found.compiled.state[f"state.model.{name}"]
        np.testing.assert_allclose(got, found.eager_state[name], rtol=1e-6, err_msg=name)


def _read(how: str) -> Callable[[torch.Tensor], object]:
    reads: dict[str, Callable[[torch.Tensor], object]] = {
        "item": lambda x: x.item(),
        "bool": bool,
        "float": float,
        "int": int,
        "print": print,
        "format": lambda x: f"{x}",
        "numpy": lambda x: x.detach().numpy(),
        "tolist": lambda x: x.tolist(),
        "cpu": lambda x: x.cpu(),
        "condition": lambda x: 1 if x > 0 else 2,
        "array": np.asarray,
        "equal": lambda x: torch.equal(x, x),
    }
    return reads[how]


@pytest.mark.parametrize(
    "how",
    [
        "item",
        "bool",
        "float",
        "int",
        "print",
        "format",
        "numpy",
        "tolist",
        "cpu",
        "condition",
        "array",
        "equal",
    ],
)
def test_reading_inside_the_step_names_the_line_and_suggests_a_step_closure(how: str) -> None:
    read = _read(how)

    def step(x: torch.Tensor) -> torch.Tensor:
        read(x.sum())
        return x

    with pytest.raises(TensorReadError, match=r"test_tracing\.py:\d+: .*step_closure"):
        traced(step, 3)


def test_outside_of_the_step_device_tensors_are_read_and_loaded() -> None:
    model = nn.Linear(3, 2)
    weights = {name: tensor.clone() + 1 for name, tensor in model.state_dict().items()}
    move_to_device(model)
    assert all(p.device.type == "xla" for p in model.parameters())
    model.load_state_dict(weights)
    np.testing.assert_array_equal(model.weight.detach().cpu().numpy(), weights["weight"].numpy())
    assert float(model.bias.sum()) == pytest.approx(float(weights["bias"].sum()))
    assert "on xla:0" in repr(model.weight)
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == {
        "weight": (2, 3),
        "bias": (2,),
    }


def test_operations_that_make_tensors_themselves_work_outside_of_the_step() -> None:
    count = to_device(torch.tensor(3))
    chosen = torch.where(count >= 2, 0.5, 1.0)
    assert isinstance(chosen, DeviceTensor)
    assert chosen.item() == 0.5
    assert torch.full_like(count, 7).item() == 7
    assert (2.0**count).item() == 8


def test_what_a_step_returned_has_no_value_outside_of_it() -> None:
    found = traced(lambda x: x * 2, 3)
    assert isinstance(found.returned, DeviceTensor)
    with pytest.raises(ValueUnavailableError, match=r"test_tracing\.py:\d+: .*step_closure"):
        found.returned.sum().item()


def test_a_tensor_of_this_cpu_is_no_place_for_results() -> None:
    kept = torch.zeros(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        kept.add_(x)
        return x

    with pytest.raises(TensorWriteError, match=r"test_tracing\.py:\d+: .*register_buffer"):
        traced(step, 3)


def test_drawing_into_a_tensor_of_this_cpu_inside_the_step_is_refused() -> None:
    with pytest.raises(RandomOutsideError, match="every step would see the same"):
        traced(lambda x: x * torch.empty(3).uniform_(), 3)
    generator = torch.Generator()
    with pytest.raises(RandomOutsideError, match="every step would see the same"):
        traced(lambda x: x * torch.rand(3, generator=generator), 3)


def test_numbers_drawn_without_a_device_differ_in_every_step() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.randn(x.shape).to(x.device)).sum() + torch.randint(9, (4,)).sum()

    found = run_compiled(nn.Identity(), step, [(torch.ones(64),)] * 4)
    assert len(set(found.values[:, 0].tolist())) == 4


def test_a_layer_is_dropped_by_a_drawn_number_only_where_that_is_certain() -> None:
    def dropping(rate: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x.sum() if torch.rand([]) < rate else (x * x).sum()

    kept, dropped = (traced(dropping(rate), 3).graph.nodes for rate in (0.0, 1.0))
    assert [any("mul" in node.op for node in nodes) for nodes in (kept, dropped)] == [True, False]
    assert not any(
        "mul" in node.op for node in traced(lambda x: x if torch.rand(1) >= 0 else x * x, 3).graph.nodes
    )
    with pytest.raises(TensorReadError, match=r"test_tracing\.py:\d+: .*__bool__"):
        traced(dropping(0.5), 3)


class Padded(nn.Module):
    """Pads by a buffer, as codecs of speech do, and scales by another one where that asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("width", torch.tensor(2), persistent=False)
        self.register_buffer("share", torch.full((2,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(x, (self.width - 1, self.width))
        return (x * 3 if self.share[0] < 1 else x).sum() + x.shape[0] + float(self.share.sum())


def test_state_that_no_step_changes_can_be_read(both_ways: Callable[..., BothWays]) -> None:
    found = both_ways(Padded(), lambda model, x: model(x), (torch.arange(4.0),), (torch.arange(4.0),))
    np.testing.assert_allclose(found.compiled.values, found.eager)
    step = found.compiled.traced
    assert not step.is_outdated()
    (share,) = (tensor for tensor, elements in step.fixed if elements.shape == (2,))
    share.to_host().fill_(1.0)
    assert step.is_outdated()


def test_state_that_the_step_changes_later_cannot_be_read() -> None:
    def step(model: Padded, x: torch.Tensor) -> torch.Tensor:
        found = model(x)
        model.share.mul_(0.5)
        return found

    with pytest.raises(TensorReadError, match=r"test_tracing\.py:\d+: .*__bool__"):
        run_compiled(Padded(), step, [(torch.arange(4.0),)])


def test_dropout_draws_other_masks_in_every_step_and_the_same_ones_again() -> None:
    model = nn.Sequential(nn.Dropout(0.5))

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (model(x) * torch.arange(64, device=x.device)).sum()

    batches = [(torch.ones(64),)] * 4
    first, again = (run_compiled(model, step, batches).values[:, 0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(set(first.tolist())) == 4
    kept = run_compiled(nn.Dropout(0.25), lambda m, x: m(x).sum() / x.sum(), [(torch.ones(4096),)])
    assert kept.values[0, 0] == pytest.approx(1, abs=0.05)


def test_tied_weights_are_one_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    move_to_device(model)
    found = traced(lambda x: model(x).sum(), 2, 4, model=model)
    assert list(found.state) == ["state.model.0.weight"]


def test_gradients_belong_to_the_layer_of_their_forward_operation() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 3), nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(x).sum()
            return found

    model = Block()
    move_to_device(model)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x)
        loss.backward()
        return loss + sum(p.grad.sum() for p in model.parameters() if p.grad is not None)

    found = traced(step, 2, 4, model=model)
    layers = {node.op: node.layer for node in found.graph.nodes}
    assert layers["aten.gelu.default"] == layers["aten.gelu_backward.default"] == ("inner", "1")
    products = {
        node.layer for node in found.graph.nodes if node.op in ("aten.addmm.default", "aten.mm.default")
    }
    assert products == {("inner", "0")}
    assert all("test_tracing.py:" in (node.source or "") for node in found.graph.nodes)


def test_shapes_of_equal_operations_are_computed_once() -> None:
    """Time steps of a recurrence repeat their operations: a longer one asks PyTorch for no more shapes."""

    def recorded(steps: int) -> Recording:
        cell = nn.GRUCell(3, 5)
        move_to_device(cell)
        x = DeviceTensor(torch.ones(2, 3))
        tracing = StepTracing([x], model_state(cell), [cell])
        h = x.new_zeros(2, 5)
        for _ in range(steps):
            h = cell(x, h)
        h.sum().backward()
        tracing.end(h.detach())
        return tracing.recording

    short, long = recorded(6), recorded(12)
    assert len(long.shapes) > 1.5 * len(short.shapes)
    computed = [{id(outs) for _, _, outs in one.shapes} for one in (short, long)]
    assert len(computed[0]) == len(computed[1])


def test_equal_numbers_of_other_types_have_separate_shapes() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        whole = x.to(torch.int32)
        return [whole * 1, whole * 1.0, whole * True, whole * 1]

    found = traced(step, 2).graph.outputs.values()
    assert [tensor.dtype for tensor in found] == ["int32", "float32", "int32", "int32"]


def test_strides_of_a_result_in_another_order_are_refused_and_those_of_its_copy_are_not() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x.T * 2).as_strided((3,), (2,), 1)

    with pytest.raises(GraphImportError, match=r"not contiguous; call contiguous\(\)"):
        run_compiled(nn.Linear(1, 1), step, [(torch.randn(3, 4),)])

    def copied(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x.T * 2).contiguous().as_strided((3,), (2,), 1).square().sum()

    x = torch.randn(3, 4)
    found = run_compiled(nn.Linear(1, 1), copied, [(x,)]).values
    np.testing.assert_allclose(found, [[float(copied(nn.Identity(), x))]], rtol=1e-5)


def test_a_write_that_only_the_recording_does_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    counter = torch.zeros(2)

    def step(x: torch.Tensor) -> torch.Tensor:
        own = torch.tensor([1.0, 2.0])
        own[1:].add_(1)
        counter[:1].add_(1)
        return x.sum() + own.sum()

    traced(step, 2, 3)
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"test_tracing\.py:\d+: aten\.add_\S+ writes to a CPU tensor while the step", message)


@pytest.mark.parametrize("clears", ["before", "after", "never"])
def test_gradients_that_a_step_never_clears_are_reported(
    clears: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(3, 2)
    move_to_device(model)

    def step(x: torch.Tensor) -> torch.Tensor:
        if clears == "before":
            model.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        if clears == "after":
            model.zero_grad()
        return loss

    traced(step, 2, 3, model=model)
    assert ("does not call zero_grad()" in caplog.text) is (clears == "never")
