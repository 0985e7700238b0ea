"""Steps in 16 bits: as a whole, in a part by autocast, or cast by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh import ops
from cgc.cirh.interface import graph_function
from cgc.cirh.types import dtype_name, tensor_of
from cgc.importers.aten import import_step
from cgc.passes import DEFAULT_PIPELINE, precision_pipeline
from cgc.passes.pipeline import run_pipeline
from cstorch import amp, backends
from cstorch.errors import ConfigureError, StepError
from cstorch.optim import AdamW
from cstorch.program import Program
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.precision import half_dtype, mix_precision, name_half_dtype, precision_of
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import TracedStep, trace
from tests.programs.pytorch.language_models import TinyGPT

from .conftest import run_module

VOCABULARY, LENGTH, WIDTH, BATCH, STEPS = 17, 8, 16, 8, 200


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = half_dtype()
    yield
    name_half_dtype(before)
    mix_precision(False)
    Program.current().models.clear()


def _texts() -> list[torch.Tensor]:
    """Rows that count up by 3, with an error now and then."""
    made = torch.Generator().manual_seed(2)
    starts = torch.randint(0, VOCABULARY, (STEPS, BATCH, 1), generator=made)
    ids = (starts + 3 * torch.arange(LENGTH + 1)) % VOCABULARY
    errors = torch.rand(ids.shape, generator=made) < 0.1
    return list(torch.where(errors, torch.randint(0, VOCABULARY, ids.shape, generator=made), ids).int())


def _trained(precision: str, half: str) -> float:
    """The mean loss of the last 20 steps, with a dynamic loss scale."""
    name_half_dtype(half)
    torch.manual_seed(1)
    model = nn.Module()
    model.net, model.scaler = (
        TinyGPT(VOCABULARY, LENGTH, WIDTH),
        amp.GradScaler("dynamic", steps_per_increase=50),
    )
    net, scaler = model.net, model.scaler
    move_to_device(model)
    Program.current().models.append(model)
    optimizer = AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)

    def step(text: torch.Tensor) -> torch.Tensor:
        logits = net(text[:, :-1])
        loss = functional.cross_entropy(logits, text[:, 1:].reshape(-1).long())
        amp.optimizer_step(loss, optimizer, scaler, max_gradient_norm=1.0)
        return loss.detach()

    texts = _texts()
    text = DeviceTensor(texts[0])
    traced = trace(lambda: step(text), [text], model_state(model), [model])
    module = _optimized(traced, precision)
    assert (_halves(module) != []) == (precision != "float32")
    return float(np.mean(_losses(traced, module, texts)[-20:]))


def _optimized(traced: TracedStep, precision: str) -> ModuleOp:
    traced.graph.outputs = {"loss": next(iter(traced.graph.outputs.values()))}
    module = import_step(traced.graph, mode="train", seed=0)
    run_pipeline(
        module, ",".join(filter(None, (DEFAULT_PIPELINE, precision_pipeline(precision)))), verify=True
    )  # type: ignore[arg-type]
    return module


def _halves(module: ModuleOp) -> list[str]:
    """Modules and types of the products that have 16 bits."""
    found = []
    for op in graph_function(module).body.block.ops:
        kind = dtype_name(tensor_of(op.results[0])) if isinstance(op, ops.MatMulOp | ops.AttentionOp) else ""
        if kind.endswith("float16"):
            found.append(f"{'.'.join(op.layer)} {kind}")
    return found


def _losses(traced: TracedStep, module: ModuleOp, batches: list[torch.Tensor]) -> list[float]:
    found: list[float] = run_module(module, traced, [(batch,) for batch in batches]).values[:, 0].tolist()
    return found


@pytest.fixture(scope="module")
def in_float32() -> float:
    found = _trained("float32", "float16")
    Program.current().models.clear()
    assert found < 0.7 * np.log(VOCABULARY)
    return found


@pytest.mark.parametrize(
    ("precision", "half"),
    [
        ("mixed_float16", "float16"),
        ("cbfloat16", "cbfloat16"),
        pytest.param("mixed_bfloat16", "bfloat16", marks=pytest.mark.soak),
    ],
)
def test_200_steps_of_a_tiny_gpt_end_near_float32(in_float32: float, precision: str, half: str) -> None:
    assert _trained(precision, half) == pytest.approx(in_float32, rel=0.02)


class Three(nn.Module):
    """Three layers, of which the middle one may be computed in another type."""

    def __init__(self, middle: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        with self.middle():
            h = torch.tanh(self.b(h))
        found: torch.Tensor = self.c(h)
        return found


def _descend(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    return loss.detach()


def _traced(model: nn.Module, step: Callable[..., torch.Tensor] = _descend) -> TracedStep:
    move_to_device(model)
    x = DeviceTensor(torch.ones(4, 6))
    return trace(lambda: step(model, x), [x], model_state(model), [model])


@pytest.mark.parametrize(
    ("middle", "kind"),
    [
        (lambda: amp.autocast(torch.bfloat16), "bfloat16"),
        (lambda: amp.autocast(), "float16"),
        (lambda: torch.autocast("xla", dtype=torch.bfloat16), "bfloat16"),
        (lambda: torch.autocast(device_type="cpu", dtype=torch.float16), "float16"),
    ],
    ids=["amp", "chosen", "torch", "torch on this cpu"],
)
def test_an_autocast_computes_its_part_in_16_bits(
    middle: Callable[[], AbstractContextManager[object]], kind: str
) -> None:
    traced = _traced(Three(middle))
    assert traced.graph.half == kind
    precision = precision_of(traced.graph.half)
    assert precision == f"mixed_{kind}"
    found = _halves(_optimized(traced, precision))
    assert set(found) == {f"b {kind}"}
    assert len(found) == 3  # forward, and both gradients
    with middle():
        assert torch.ones(2) is not None  # it may be entered outside of a step, too


def test_a_part_within_an_autocast_stays_float32() -> None:
    model = Three(lambda: amp.autocast(enabled=False))
    with_all = amp.autocast(torch.float16)(_descend)
    found = _halves(_optimized(_traced(model, with_all), "mixed_float16"))
    assert {name.split()[0] for name in found} == {"a", "c"}


class Images(nn.Module):
    """Layers whose functions refuse 16 bits together with float32; a function casts their inputs."""

    def __init__(self, cast: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.cast = cast
        self.patches, self.norm, self.out = nn.Conv2d(3, 4, 2, stride=2), nn.LayerNorm(4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cast(self.patches(self.cast(x)))
        h = self.cast(self.norm(h.flatten(2).transpose(1, 2)))
        found: torch.Tensor = self.out(self.cast(h @ self.out.weight[:4]))
        return found


def test_a_mixed_step_takes_tensors_of_16_bits() -> None:
    """Some loaders cast to the 16-bit type themselves."""
    torch.manual_seed(4)
    alone, x = Images(lambda x: x), torch.randn(2, 3, 4, 4).half()
    model = Images(torch.Tensor.half)
    model.load_state_dict(alone.state_dict())
    expected = [float(_descend(alone, x.float())) for _ in range(3)]
    move_to_device(model)
    given = DeviceTensor(x)

    def traced() -> TracedStep:
        return trace(lambda: _descend(model, given), [given], model_state(model), [model])

    with pytest.raises(RuntimeError, match="should be the same"):
        traced()
    mix_precision()
    found = traced()
    module = _optimized(found, "mixed_float16")
    assert _halves(module)
    assert _losses(found, module, [x] * 3) == pytest.approx(expected, rel=3e-3)


def test_two_formats_in_a_step_are_refused() -> None:
    model = Three(lambda: amp.autocast(torch.bfloat16))
    with pytest.raises(StepError, match=r"autocasts in float16 at .*, bfloat16 at .*one 16-bit format"):
        _traced(model, amp.autocast(torch.float16)(_descend))
    with pytest.raises(StepError, match=r"got torch\.float64, expected torch\.float16 or"):
        amp.autocast(torch.float64)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_a_model_that_is_cast_by_hand_computes_as_eager(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(kind), torch.randn(4, 6)
    eager = copy.deepcopy(model)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return _descend(model, x.to(kind)).float()

    expected = [float(step(eager, x)) for _ in range(3)]
    move_to_device(model)
    batch = DeviceTensor(x)
    traced = trace(lambda: step(model, batch), [batch], model_state(model), [model])
    found = _losses(traced, _optimized(traced, "float32"), [x] * 3)
    np.testing.assert_allclose(found, expected, rtol=0.01)


def test_the_backend_and_the_program_choose_the_precision_of_a_step() -> None:
    assert precision_of(None) == "float32"
    amp.use_bfloat16(False)
    assert precision_of(None) == "float32"
    amp.set_half_dtype("cbfloat16")
    assert precision_of(None) == "cbfloat16"
    backend = backends.backend("CPU", mixed_precision=False, use_cs_grad_accum=True)
    assert Program.current().backend is backend
    Program.current().backend = None
    assert precision_of(None) == "float32"
    assert precision_of("bfloat16") == "mixed_bfloat16"
    with pytest.raises(ConfigureError, match="mixed_precison"):
        backends.backend("CPU", mixed_precison=True)
