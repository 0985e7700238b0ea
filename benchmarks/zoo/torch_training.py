"""Trains torch models by PyTorch, and through cerebras_pytorch as a program of a user does."""

from __future__ import annotations

import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.zoo.architecture import SEED, STEPS, SkippedError, Workload
from benchmarks.zoo.training import (
    LEARNING_RATE,
    MOMENTUM,
    Reference,
    State,
    Trained,
    all_finite,
    difference,
    of_worker,
    preload_compiler,
)


def state_of(model: nn.Module) -> State:
    """Parameters and buffers of a model by name, each once, as arrays that nobody writes."""
    named = [*model.named_parameters(), *model.named_buffers()]
    kept = set(model.state_dict())
    return {name: _array(tensor) for name, tensor in named if name in kept}


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = tensor.detach().cpu()
    return np.array((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())


def train_on_cpu(workload: Workload, seed: int = SEED) -> Trained:
    """Trains a copy of the model by PyTorch.

    Args:
        workload: The model and its batches.
        seed: Of what the model draws.
    """
    model = copy.deepcopy(workload.model)
    assert workload.loss is not None
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    torch.manual_seed(seed)
    losses = []
    for batch in workload.batches:
        with _FirstOfEqual():
            loss = workload.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return Trained(losses, state_of(model))


class _FirstOfEqual(TorchDispatchMode):
    """Makes `topk` choose the first of equal numbers, as the CS system does.

    PyTorch leaves the choice open, and scores that come out of a ReLU are often 0.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.ops.aten.topk.default:
            return func(*args, **(kwargs or {}))
        x, count, dim, largest = (*args, *(-1, True)[len(args) - 2 :])[:4]
        found = torch.sort(x, dim=dim, descending=largest, stable=True)
        return tuple(part.narrow(dim, 0, count) for part in found)


def expected(workload: Workload) -> Reference:
    """PyTorch's training.

    A model is switched to evaluation mode where it draws random numbers in training mode, overflows, or is
    ill-conditioned there, as by normalizing few values.

    Raises:
        SkippedError: the loss overflows, or depends on random numbers in both modes.
    """
    first, found, problem = state_of(workload.model), None, ""
    for mode in (True, False):
        workload.model.train(mode)
        trained, other = train_on_cpu(workload), train_on_cpu(workload, SEED + 1)
        if not all_finite(trained):
            problem = "the loss overflows within five steps of PyTorch"
            continue
        if trained.losses != other.losses:
            problem = "its loss depends on random numbers that PyTorch draws"
            continue
        found = _reference(workload, first, trained), mode
        if not found[0].rounding.is_ill_conditioned:
            break
    if found is None:
        raise SkippedError(problem)
    workload.model.train(found[1])
    return found[0]


def _reference(workload: Workload, first: State, trained: Trained) -> Reference:
    """The training run in float64 next to one in float32, and what rounding changes."""
    model = copy.deepcopy(workload.model)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + 2**-23 * torch.randn(parameter.shape, generator=generator))
    changed = Workload(model, workload.batches, workload.loss, workload.about)
    rounding = difference(first, trained, train_on_cpu(changed))
    wide = copy.deepcopy(workload.model).double()
    batches = [{name: _widen(value) for name, value in batch.items()} for batch in workload.batches]
    try:
        exact = train_on_cpu(Workload(wide, batches, workload.loss, workload.about))
    except Exception:  # models that name float32 themselves do not run in float64
        return Reference((trained,), rounding)
    return Reference((trained, exact), rounding.or_larger(difference(first, trained, exact)))


def _widen(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.dtype == torch.float32 else value


def input_fn(batches: list[dict[str, torch.Tensor]]) -> torch.utils.data.DataLoader:
    """The batches of a worker."""
    import cerebras_pytorch as cstorch

    rank, workers = cstorch.distributed.get_streaming_rank(), cstorch.distributed.num_streamers()
    return torch.utils.data.DataLoader(of_worker(batches, rank, workers), batch_size=None)  # type: ignore[arg-type]


def train_on_system(
    workload: Workload, model_dir: Path, execution: str = "pipelined", validate_only: bool = False
) -> Trained:
    """Trains the model on the CS system that the environment names, or on an embedded one.

    Args:
        workload: The model and its batches. The model moves to the CS system.
        model_dir: For the files of the run.
        execution: "pipelined" or "weight_streaming".
        validate_only: Trace and check the first step, and train nothing.
    """
    import cerebras_pytorch as cstorch

    backend = cstorch.backend("CSX", artifact_dir=model_dir, execution=execution, validate_only=validate_only)
    model = cstorch.compile(workload.model, backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    losses: list[float] = []

    @cstorch.trace
    def train_step(batch: dict[str, torch.Tensor]) -> Any:
        assert workload.loss is not None
        loss = workload.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    @cstorch.step_closure
    def keep(loss: torch.Tensor) -> None:
        losses.append(float(loss.detach()))

    loader = cstorch.utils.data.DataLoader(input_fn, workload.batches)
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=STEPS):
        keep(train_step(batch))
    return Trained(losses, {} if validate_only else state_of(model))


def preload() -> None:
    """Imports what all trainings need, before processes are forked; starts no thread."""
    for name in ("cerebras_pytorch", "cgc.importers.aten", "cstorch.loop.on_cs"):
        import_module(name)
    preload_compiler()
    torch.set_num_threads(1)
