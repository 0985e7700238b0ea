"""Tensors that a step, or a program around it, makes on the device; values that a step may read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import cstorch
from cstorch.errors import TensorReadError
from cstorch.tensors import current_torch_device as _  # noqa: F401 - makers of tensors on the device
from cstorch.tracing.device import DEVICE, DeviceTensor, from_array, to_device
from cstorch.tracing.values import to_array

from .conftest import BothWays, in_numbers, run_compiled

Make = Callable[[torch.Tensor], torch.Tensor]

MADE: dict[str, Make] = {
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    "number": lambda x: torch.tensor(2, dtype=x.dtype, device=x.device),
    "as_tensor": lambda x: torch.as_tensor(np.ones(4, np.float32), device=x.device) + torch.as_tensor(x),
    "written": lambda x: torch.tensor([0.0] * 4, device=x.device).add_(x[0]).mul_(2),
    "filled": lambda x: torch.zeros(4, device=x.device) + torch.full((4,), 2.0, device=x.device),
    "ones": lambda x: torch.ones(3, 4, device=x.device, dtype=torch.int32) * torch.eye(4, device=x.device)[0],
    "range": lambda x: torch.arange(4, device=x.device) + torch.linspace(0, 1, 4, device=x.device),
    "empty": lambda x: torch.empty(4, device=x.device).fill_(2) + torch.empty_like(x).zero_(),
    "new": lambda x: x.new_zeros(4) + x.new_ones((4,)) + x.new_full((4,), 3.0) + x.new_tensor([1, 2, 3, 4]),
    "moved": lambda x: torch.ones(4).to(x.device) + torch.ones(4).to(x) + torch.ones(4).double().type_as(x),
    "random": lambda x: 0 * (torch.rand(4, device=x.device) + torch.randn(4, device=x.device)),
    "order": lambda x: x[:, torch.randperm(4, device=x.device)].sum(),
    "grid": lambda x: torch.stack(torch.meshgrid(*[torch.arange(4, device=x.device)] * 2, indexing="ij")).sum(
        0
    ),
    "rows": lambda x: x.index_select(1, torch.tensor([0, 2], device=x.device)),
    "inverse functions": lambda x: (x / 20).asin() + (x / 20).acos() + x.atan() + (x / 20).atanh(),
    "hyperbolic": lambda x: (x + 1).acosh() + x.asinh() + (x / 9).sinh() + torch.hypot(x, x + 1),
    "gamma": lambda x: torch.lgamma(x + 1) + torch.digamma(x + 1) + torch.erfinv(x / 20),
    "ranks": lambda x: x.kthvalue(2, -1)[0] + x.median(0)[0][:3] + x.median(),
    "shifts": lambda x: (x.int() << 2) + (x.int() >> 1),
    "places": lambda x: torch.bucketize(x, torch.tensor([1.0, 5.0, 9.0])) + torch.searchsorted(x, x + 0.5),
    "right": lambda x: torch.bucketize(x, torch.tensor([1.0, 5.0]), right=True),
    "whole rows": lambda x: x.gather(0, torch.tensor([[2], [0]]).expand(2, 4)),
    "scattered rows": lambda x: (
        torch.ones(5, 4).to(x).scatter_add(0, torch.tensor([[2], [0], [2]]).expand(3, 4), x)
    ),
    "triangles": lambda x: x.tril(-1) + x.triu(1) + torch.ones(3, 4, device=x.device).tril(2),
    "lists": lambda x: (
        torch._foreach_mul([x, x + 1], [2.0, 3.0])[1] + torch._foreach_add([x], [x], alpha=2)[0]
    ),
    "decided by what is known": lambda x: x * 2 if torch.ones(2, 2, device=x.device).tril().sum() == 3 else x,
    "read where it is known": lambda x: x + torch.arange(5, device=x.device).max().item(),
}


@pytest.fixture(scope="module")
def compiled() -> np.ndarray:
    """The sums of all, of one step."""

    def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        return [make(x).float().sum() for make in MADE.values()]

    return run_compiled(nn.Linear(1, 1), step, [(_input(),)]).values[0]


def _input() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("name", MADE)
def test_tensors_made_in_a_step_equal_those_of_eager_torch(compiled: np.ndarray, name: str) -> None:
    expected = in_numbers(MADE[name](_input()).float().sum())[0]
    assert compiled[list(MADE).index(name)] == pytest.approx(expected, rel=2e-6, abs=1e-5)


OUTSIDE: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(2, 3, device=DEVICE),
    "arange": lambda: torch.arange(4, device="xla:0"),
    "full": lambda: torch.full((2,), 5.0, device=DEVICE),
    "module": lambda: nn.Linear(2, 2, device=DEVICE).weight,
    "moved module": lambda: nn.Linear(2, 2).to(DEVICE).weight,
    "moved": lambda: torch.ones(3).to(DEVICE),
    "number": lambda: torch.tensor(5, dtype=torch.float32, device=DEVICE),
    "list": lambda: torch.as_tensor([1.0, 2.0], device=DEVICE),
    "new": lambda: torch.ones(3).to(DEVICE).new_tensor([1, 4]),
    "new there": lambda: torch.ones(3).new_tensor([1, 4], device=DEVICE),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_made_outside_of_a_step_it_is_on_the_device_with_its_elements(name: str) -> None:
    made = OUTSIDE[name]()
    assert isinstance(made, DeviceTensor)
    assert made.device == DEVICE
    torch.manual_seed(0)
    sums = {"zeros": 0, "arange": 6, "full": 10, "moved": 3, "number": 5, "list": 3, "new": 5, "new there": 5}
    expected = sums.get(name)
    if expected is not None:
        assert float(made.sum()) == expected


def test_numbers_of_python_keep_their_values_on_the_way_to_the_device() -> None:
    assert torch.tensor([1.0, 2.0], device=DEVICE).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "read",
    [
        lambda model, x: x.sum().item(),
        lambda model, x: bool(model.weight.sum() > 0),
        lambda model, x: torch.rand(2, device=x.device).tolist(),
        lambda model, x: torch.allclose(x, x),
    ],
    ids=["batch", "state", "random", "compared"],
)
def test_tensors_that_steps_do_not_share_are_not_read(read: Callable[..., object]) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        read(model, x)
        with torch.no_grad():
            model.weight.mul_(0.5)
        return x.sum()

    with pytest.raises(TensorReadError, match=r"test_tensors_in_steps\.py:\d+"):
        run_compiled(nn.Linear(1, 1), step, [(_input(),)])


def test_a_mask_in_a_buffer_is_a_constant_until_a_step_writes_it(both_ways: Callable[..., BothWays]) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(3, 3).tril())
            self.register_buffer("ids", torch.arange(3))
            self.register_buffer("factors", torch.tensor([1.0, 2.0, 3.0]))
            self.register_buffer("written", torch.arange(3))

    def step(model: Masked, x: torch.Tensor) -> torch.Tensor:
        model.written.add_(1)
        return (x[:, :3] * model.mask * model.factors + model.ids + model.written).sum()

    found = both_ways(Masked(), step, (_input(),), (_input(),))
    np.testing.assert_allclose(found.compiled.values, found.eager)
    names = {name.removeprefix("state.model.") for name in found.compiled.state}
    assert names == {"factors", "written", "state.global_step"}


def test_data_that_is_set_in_a_step_is_state(both_ways: Callable[..., BothWays]) -> None:
    """A moving average of weights, as encoders with momentum write it, and weights out of a vector."""

    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.average = nn.Linear(4, 2), nn.Linear(4, 2)

    torch.manual_seed(0)

    def step(module: Averaged, x: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        loss = module.model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            flat = nn.utils.parameters_to_vector(module.model.parameters())
            slopes = nn.utils.parameters_to_vector(p.grad for p in module.model.parameters())
            nn.utils.vector_to_parameters(flat - 0.1 * slopes, module.model.parameters())
            for average, weight in zip(module.average.parameters(), module.model.parameters(), strict=True):
                average.data = average.data * 0.75 + weight.data * 0.25
        return module.average(x).sum()

    found = both_ways(Averaged(), step, *([x] for x in torch.randn(3, 3, 4)))
    np.testing.assert_allclose(found.compiled.values, found.eager, 1e-5)


def test_data_that_is_set_outside_of_a_step_is_written(fresh_process: None) -> None:
    model = cstorch.compile(nn.Linear(2, 1), cstorch.backend("CSX"))
    model.weight.data = torch.tensor([[3.0, 4.0]])
    assert model.weight.tolist() == [[3.0, 4.0]]
    assert model.weight.requires_grad


@pytest.mark.parametrize(
    "elements",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).bfloat16(),
        torch.tensor([True, False]),
        torch.tensor(7),
        torch.zeros(0, 3),
        torch.tensor([1 + 2j]),
    ],
    ids=lambda elements: f"{elements.dtype}{list(elements.shape)}",
)
def test_elements_of_the_system_replace_those_in_place(elements: torch.Tensor) -> None:
    host = torch.full_like(elements, 1)
    tensor, array = to_device(host), to_array(elements)
    tensor.load(from_array(array, elements.dtype, copy=False))
    assert torch.equal(host, elements)
    array.flags.writeable = False
    tensor.load(from_array(array, elements.dtype, copy=False))


def test_elements_of_a_transposed_or_wider_tensor_are_replaced() -> None:
    elements, host = torch.arange(6.0).reshape(2, 3), torch.zeros(3, 2)
    to_device(host.T).load(elements)
    assert torch.equal(host, elements.T)
    wide = torch.zeros(2, 3, dtype=torch.float64)
    to_device(wide).load(elements)
    assert torch.equal(wide, elements.double())
