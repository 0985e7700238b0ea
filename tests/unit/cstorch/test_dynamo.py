"""PyTorch's own compiler, and DTensor, stay out of programs that do not use them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from cstorch.tracing import dynamo
from cstorch.tracing.dynamo import appearing_compiled, without_dynamo

NAME = "torch._dynamo"


@pytest.fixture
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove Dynamo, which another test may have imported."""
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.delitem(vars(torch), "_dynamo", raising=False)  # to ask torch for it would import it


def test_they_come_with_a_program_that_uses_them() -> None:
    """Shapes of layers, optimizers and the device do without; where they are used nothing is different."""
    program = (
        "import sys, torch, cstorch\n"
        "from cstorch.tracing.dynamo import appearing_compiled, without_dynamo\n"
        "with without_dynamo():\n"
        "    x = torch.nn.Linear(3, 4, device='meta')(torch.empty(2, 3, device='meta'))\n"
        "    assert torch.log_softmax(x, 1).shape == (2, 4)\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)\n"
        "optimizer.zero_grad()\n"
        "optimizer.load_state_dict(optimizer.state_dict())\n"
        "from cstorch.tracing.device import to_device\n"
        "assert to_device(torch.nn.Parameter(torch.ones(2))).shape == (2,)\n"
        "assert 'torch.distributed.tensor' not in sys.modules\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "assert torch.compiler.is_compiling() is False\n"
        "with without_dynamo():\n"
        "    import torch._dynamo.config\n"
        "assert torch._dynamo.config.verbose is not None and torch._dynamo.is_compiling() is False\n"
        "compiled = torch.compile(lambda x: x + 1, backend=lambda *_: 1 / 0)\n"
        "with appearing_compiled():\n"
        "    assert compiled(torch.ones(())) == 2 and torch._dynamo.is_compiling()\n"
        "torch.compile(optimizer.zero_grad, backend=lambda *_: 1 / 0)()\n"
        "skipped = torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable\n"
        "assert skipped.__module__ == 'torch._dynamo.eval_frame', skipped\n"
        "from torch import distributed\n"
        "from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh\n"
        "distributed.init_process_group('gloo', rank=0, world_size=1, store=distributed.HashStore())\n"
        "rows = distribute_tensor(torch.ones(2, 3), init_device_mesh('cpu', (1,)), [Shard(0)])\n"
        "sums = rows @ rows.t()\n"
        "assert type(sums) is DTensor and sums.full_tensor().tolist() == [[3, 3], [3, 3]]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.usefixtures("not_loaded")
def test_a_function_that_it_shall_skip_is_itself() -> None:
    with without_dynamo():
        assert torch._dynamo.disable(len, True, wrapping=False) is len
        assert not hasattr(sys.modules[NAME], "__file__")  # who looks through all modules asks for that
        assert NAME in sys.modules
    assert NAME not in sys.modules


@pytest.mark.usefixtures("not_loaded")
def test_a_step_looks_as_if_it_were_compiled() -> None:
    def answers() -> list[bool]:
        asked = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
        return [*(ask() for ask in asked), torch.compiler.is_exporting(), torch.jit.is_tracing()]

    compiles = torch.compile
    with appearing_compiled():
        assert answers() == [True, True, False, False]
        assert torch._dynamo.is_compiling() is True
        assert torch.compile(len) is len
        assert torch.compile(fullgraph=True)(len) is len
        assert isinstance(sys.modules[NAME], dynamo._DynamoPlaceholder)
    assert not any(answers())
    assert torch.compile is compiles


@pytest.mark.usefixtures("not_loaded")
def test_other_attributes_come_from_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType(NAME)
    vars(real)["reset"] = "of Dynamo"
    monkeypatch.setattr(dynamo, "import_module", {NAME: real}.__getitem__)
    with without_dynamo():
        assert sys.modules[NAME].reset == "of Dynamo"
        assert NAME not in sys.modules  # the next one imports Dynamo


def test_where_it_is_loaded_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, real)
    with without_dynamo():
        assert sys.modules[NAME] is real
    assert sys.modules[NAME] is real
