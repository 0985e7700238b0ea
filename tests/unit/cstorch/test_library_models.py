"""Operations that models of libraries use and users' programs seldom do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cgc.cirh.shape import ConstOp
from cgc.cirh.types import size_bytes, tensor_of
from cgc.errors import GraphImportError, UnsupportedOpsError
from cgc.importers.aten import import_step
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline
from cstorch.errors import TensorReadError
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace

from .conftest import BothWays, run_compiled
from .test_tracing import traced

Run = Callable[..., BothWays]

LIBRARY = "/usr/lib/python3/site-packages/layers/mask.py"


def of_library(text: str) -> Callable[..., Any]:
    """The function `f` of a text, as if it were in an installed package."""
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, LIBRARY, "exec"), names)
    found: Callable[..., Any] = names["f"]
    return found


class Experts(nn.Module):
    """Tokens go to the experts with the largest scores, in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 12) / 3)
        self.down = nn.Parameter(torch.randn(4, 8, 12) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        order = chosen.reshape(-1).argsort(stable=True)
        counts = torch.histc(chosen.reshape(-1).float(), bins=4, min=0, max=3)
        ends = counts.cumsum(0, dtype=torch.int32)
        hidden = functional.grouped_mm(x[order // 2], self.up, offs=ends).relu()
        found = functional.grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)
        return torch.zeros_like(x).index_add(
            0, order // 2, found * weights.reshape(-1)[order, None]
        ), ends.float().mean()


def test_a_mixture_of_experts_trains_as_in_eager_torch(both_ways: Run) -> None:
    def step(model: Experts, x: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        found, mean = model(x)
        loss = (found**2).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad)
        return [loss.detach(), mean]

    torch.manual_seed(1)
    found = both_ways(Experts(), step, (torch.randn(6, 8),), (torch.randn(6, 8),))
    np.testing.assert_allclose(found.compiled.values, found.eager, rtol=1e-5)
    for name, expected in found.eager_state.items():
        got = found.compiled.state[f"state.model.{name}"]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=name)


GROUPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of columns": lambda x: functional.grouped_mm(x, x.T, offs=torch.tensor([1, 1, 3], dtype=torch.int32)),
    "of the right": lambda x: functional.grouped_mm(
        torch.stack([x, x + 1]), x.T.contiguous(), offs=torch.tensor([2, 4], dtype=torch.int32)
    ),
    "of all": lambda x: functional.grouped_mm(torch.stack([x, x + 1]), torch.stack([x, x]).transpose(1, 2)),
    "counts": lambda x: x.histc(5) + x.histc(5, -1, 1) + torch.ones_like(x).histc(5),
    "counts of whole numbers": lambda x: torch.tensor([0.0, 1, 3, 3, 7]).to(x.device).histc(4, 0, 3),
}


def test_products_and_counts_of_groups() -> None:
    torch.manual_seed(2)
    x = torch.randn(4, 4)

    def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        made = [make(x) for make in GROUPED.values()]
        return [(found * torch.arange(1.0, found.numel() + 1).view_as(found)).sum() for found in made]

    got = run_compiled(nn.Linear(1, 1), step, [(x,)]).values[0]
    np.testing.assert_allclose(got, [float(value) for value in step(nn.Linear(1, 1), x)], rtol=1e-5)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_packed_sequences_of_lengths_that_the_program_knows(both_ways: Run, kind: type[nn.RNNBase]) -> None:
    def step(model: nn.RNNBase, x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        packed = pack_padded_sequence(x, [1, 3], batch_first=True, enforce_sorted=False)
        padded, lengths = pad_packed_sequence(
            model(packed)[0], batch_first=True, padding_value=0.5, total_length=4
        )
        assert lengths.tolist() == [1, 3]
        loss = padded.square().sum()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    torch.manual_seed(1)
    found = both_ways(kind(2, 3, batch_first=True), step, (torch.randn(2, 3, 2),), (torch.randn(2, 3, 2),))
    np.testing.assert_allclose(found.compiled.values, found.eager, rtol=1e-5)
    with pytest.raises(TensorReadError, match=r"test_library_models\.py:\d+"):
        traced(lambda x: pack_padded_sequence(x, x[:, 0, 0].long(), batch_first=True).data, 2, 3, 2)
    with pytest.raises(RuntimeError, match=r"are \[1, 3\], expected .*enforce_sorted=False"):
        traced(lambda x: pack_padded_sequence(x, [1, 3], batch_first=True).data, 2, 3, 2)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_recurrence_takes_a_first_state_of_the_cpu(both_ways: Run, kind: type[nn.RNNBase]) -> None:
    def step(model: nn.RNNBase, x: torch.Tensor) -> torch.Tensor:
        first = torch.arange(6.0).reshape(1, 2, 3)
        return model(x, (first, torch.zeros(1, 2, 3)) if kind is nn.LSTM else first)[0].square().sum()

    torch.manual_seed(1)
    found = both_ways(kind(2, 3, batch_first=True), step, (torch.randn(2, 4, 2),))
    np.testing.assert_allclose(found.compiled.values, found.eager, rtol=1e-5)


class Neighbors(nn.Module):
    """A layer of a graph, whose edges are sparse matrices: a buffer, a constant, and weights of the step."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        edges = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0], [0.0, 0.0, 1.0]])
        self.register_buffer("edges", edges.to_sparse(layout=layout))
        self.constant = edges.to_sparse(layout=layout)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sparse.mm(self.edges, self.linear(x))
        h = torch.spmm(self.constant, h) + self.constant @ h
        places = torch.tensor([[0, 1, 1], [2, 0, 0]])
        weights = torch.sparse_coo_tensor(places, h[:, 0], (3, 3), device=h.device)
        return torch.sparse.addmm(x, weights, h, alpha=0.5)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_matrices_become_dense(layout: torch.layout) -> None:
    def step(model: Neighbors, x: torch.Tensor) -> list[torch.Tensor]:
        loss = model(x).square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad.abs().sum() for p in model.parameters())]

    torch.manual_seed(1)
    model = Neighbors(layout)
    expected = step(model, x := torch.randn(3, 4))
    model.zero_grad()
    got = run_compiled(model, step, [(x,)]).values[0]
    np.testing.assert_allclose(got, [float(value) for value in expected], rtol=1e-5)
    with pytest.raises(ValueError, match=r"expected torch\.sparse_coo_tensor\(indices, values, size\)"):
        traced(lambda x: torch.sparse_coo_tensor([[0, 1], [1, 0]], x), 2)


class Neurons(nn.Module):
    """Spiking neurons, whose potentials get their size from the first input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("potential", torch.zeros(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.potential = torch.zeros_like(self.linear(x))
        for _ in range(3):
            self.potential = 0.5 * self.potential + self.linear(x)
        return self.potential


def test_an_empty_state_that_the_step_sizes_is_empty_in_the_next(
    both_ways: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def step(model: Neurons, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().sum()

    torch.manual_seed(1)
    found = both_ways(Neurons(), step, *((torch.randn(2, 3),) for _ in range(2)))
    np.testing.assert_allclose(found.compiled.values, found.eager, rtol=1e-5)
    assert "the empty state 'potential' becomes float32[2, 4] in the step" in caplog.text


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_the_gradient_of_a_padding_holds_no_index_of_each_element(mode: str) -> None:
    """An index for each element of a batch would be kept in the memory of a kernel."""
    x = DeviceTensor(torch.ones(4, 3, 32, 32))
    model = nn.Conv2d(3, 3, 1)
    move_to_device(model)

    def step() -> torch.Tensor:
        functional.pad(model(x), (1, 2, 2, 1), mode=mode).square().sum().backward()
        return model.weight.grad

    module = import_step(trace(step, [x], model_state(model), [model]).graph, mode="train", seed=1)
    run_pipeline(module, DEFAULT_PIPELINE)
    constants = [op for op in module.walk() if isinstance(op, ConstOp) and op.splat_value() is None]
    assert all(size_bytes(tensor_of(op.result)) <= 8 * 35 * 32 for op in constants)


@torch.library.custom_op("toolkit_test::scaled", mutates_args=())
def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    found = torch.empty_like(x)
    for row in range(len(x)):
        torch.mul(x[row].relu(), factor, out=found[row])
    return found.add_(1)


_scaled.register_fake(lambda x, factor: torch.empty_like(x))


def test_an_operation_of_a_library_is_imported_as_its_parts() -> None:
    step = lambda model, x: _scaled(x, 3.0).sum()  # noqa: E731
    assert run_compiled(nn.Linear(1, 1), step, [(torch.tensor([-1.0, 2.0]),)]).values.tolist() == [[8.0]]


def test_messages_name_the_line_of_the_library_too() -> None:
    f = of_library("def f(x):\n    return torch.linalg.eig(x)[0]")
    with pytest.raises(
        UnsupportedOpsError,
        match=r"linalg_eig.*line \S*test_library_models\.py:\d+ \(in layers/mask\.py:2\)",
    ) as caught:
        import_step(traced(lambda x: f(x).abs(), 3, 3).graph, mode="eval", seed=0)
    assert caught.value.details[0].library == "layers/mask.py:2"


def test_an_operation_that_cannot_have_its_arguments_is_a_message() -> None:
    f = of_library("def f(x):\n    return torch.linalg.eig(x)[0].abs() + x @ x[:2]")
    with pytest.raises(GraphImportError) as caught:
        traced(f, 3, 3)
    unknown, wrong = caught.value.details
    assert unknown.op == "aten.linalg_eig.default"
    assert wrong.op == "aten.mm.default"
    assert "got float32[3,3], float32[2,3]: " in wrong.message


def test_a_table_in_float64_is_computed_on_this_cpu(both_ways: Run) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(5, dtype=torch.float64, device=x.device)
        rates = 1.0 / 10000 ** (torch.arange(4, dtype=torch.float64, device=x.device) / 4)
        angles = places[:, None] @ rates[None]
        table = torch.cat([angles.sin(), angles.cos()], dim=1)
        return (model(x) * table.to(x.dtype)).sum()

    x = torch.randn(5, 8)
    found = both_ways(nn.Linear(8, 8), lambda *given: [step(*given).detach()], (x,), (x,))
    np.testing.assert_allclose(found.compiled.values, found.eager, rtol=1e-5, atol=1e-6)


def test_float64_of_a_batch_is_refused() -> None:
    step = traced(lambda x: x.double().sum().float(), 1, 2)
    with pytest.raises(GraphImportError, match="element type float64"):
        import_step(step.graph, mode="eval", seed=0)
