"""Compiles a model for its backend, and predicts with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard, TypeVar
from weakref import ref

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader as TorchLoader

from cs_toolkit.garbage import seldom_searched
from cstorch.amp.half import autocast
from cstorch.backends.base_backend import Backend, choose, current_backend, execution_of, type_of
from cstorch.config import BackendType
from cstorch.errors import CompileCallError, ConfigureError, InputError, ModelMovedError
from cstorch.loop.loaders import DataLoader
from cstorch.loop.steps import compile_step, step_closure
from cstorch.program import Program, configuration
from cstorch.tracing.places import user_line
from cstorch.tracing.state import move_to_device

log = logging.getLogger("cstorch")

Model = TypeVar("Model", bound=nn.Module)


def prepare(model: Model, backend: str | BackendType | Backend | None = None) -> Model:
    """Moves a model's parameters and buffers to the device of its backend, and returns the model.

    Nothing is compiled yet: that happens in the first step, when the shapes of a batch are known. On the CPU
    nothing moves and nothing is compiled.

    The model gets the attributes `backend` and, where its class has none, `device`.

    Args:
        model: the model.
        backend: what `cstorch.backend` has returned, or its name. None means the backend of this process; the
            CS system where there is none and `cstorch.configure` was called, else this CPU. The name "WSE_WS"
            streams weights, unless `configure` has chosen an execution.

    Raises:
        CompileCallError: no module, or a backend that is not there.
        ConfigureError: a backend that is not that of this process.
        ModelMovedError: the model is not on this CPU.
    """
    if not isinstance(model, nn.Module):
        raise CompileCallError(f"compile() got a {type(model).__name__}, expected a torch.nn.Module")
    chosen = _backend_of(backend)
    program = Program.current()
    kept = program.cpu_models if chosen.is_cpu else program.models
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type not in ("cpu", chosen.torch_device.type):
            raise ModelMovedError(str(tensor.device), user_line())
    if not chosen.is_cpu:
        with seldom_searched():
            move_to_device(model)
    object.__setattr__(model, "backend", chosen)
    if not hasattr(model, "device"):
        object.__setattr__(model, "device", chosen.torch_device)
    if model not in kept:
        kept.append(model)
        if chosen.is_cpu and chosen.mixed_precision:
            _autocast_forward(model)
    return model


def _autocast_forward(model: nn.Module) -> None:
    """Compute the model, with a loss that it returns, within `amp.autocast`; gradients follow it."""
    entered: list[autocast] = []

    def enter(*_: object) -> None:
        entered.append(autocast())
        entered[-1].__enter__()

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter, prepend=True)
    model.register_forward_hook(leave, always_call=True)


def _backend_of(wanted: str | BackendType | Backend | None) -> Backend:
    """The backend that a program gives or has chosen, else what `configure` means."""
    current = current_backend(raise_exception=False)
    if isinstance(wanted, Backend):
        return wanted
    if wanted is None and current is not None:
        return current
    program = Program.current()
    default = BackendType.CSX if program.models or program.is_configured else BackendType.CPU
    kind = default if wanted is None else type_of(wanted)
    present = current.backend_type if current else BackendType.CSX if program.models else kind
    if kind is not present:
        raise ConfigureError(
            f"compile() is for backend '{kind.value}', but this process computes on {present.value}; give "
            "compile the backend that cstorch.backend returned"
        )
    if current is not None:
        return current
    if kind is BackendType.CSX:  # of a program that calls `configure`, and not `backend`
        execution = None if wanted is None else execution_of(wanted)
        if execution is not None and configuration().execution == "auto":
            program.change_configuration(execution=execution)
        return Backend(kind)
    if wanted is None:
        log.info("the model runs on this CPU; for a CS system choose cstorch.backend('CSX')")
    return choose(kind)


"""One step for each model, so that it is recorded once for batches of one shape."""


def predict(model: nn.Module, data: Any) -> Any:
    """Outputs of a model in eval mode, as tensors of this CPU in the nest that it returns.

    The model is compiled if it is not yet; its mode is what it was when the call is done. A program that was
    compiled before, for the same shapes, is not compiled again.

    Args:
        model: called as `model(batch)`, with a tuple or list as `model(*batch)` and a dict as
            `model(**batch)`.
        data: one batch, as a tensor or a tuple, list or dict of tensors, the first dimension of each its
            samples. Or many: a `torch.utils.data.DataLoader` or another iterable of batches; or a
            `cstorch.utils.data.DataLoader`, whose workers read it. The last of many may be smaller: it is
            filled up with copies of its last sample, and outputs are cut to its samples. An output that is
            computed across samples, such as a mean loss, is that of the filled batch.

    Returns:
        The outputs of one batch. Of many an iterator of the outputs of each, in order.

    Raises:
        InputError: there is no tensor in the data, or batches of different shapes.
        cgc.errors.CompileError: the model cannot be compiled.
        cs_system.errors.CsSystemError: the system is not there or busy.
    """
    if isinstance(data, DataLoader):
        return _outputs(model, data)
    if isinstance(data, torch.Tensor | Mapping) or _is_one_batch(data):
        (outputs,) = _outputs_of_all(model, [data])
        return outputs
    return _outputs_of_all(model, data)


def _is_one_batch(data: Any) -> bool:
    """Whether a tuple or list holds tensors, and not batches of several."""
    return isinstance(data, tuple | list) and bool(data) and all(isinstance(x, torch.Tensor) for x in data)


def _outputs_of_all(model: nn.Module, batches: Iterable[Any]) -> Iterator[Any]:
    """Of batches of this process; the last one is filled up to the size of the first."""
    sized = batches if _is_sized(batches) else list(batches)
    if not len(sized):
        raise InputError("predict() got no batch, expected one or more")
    size = _samples(next(iter(sized)))
    steps, last = len(sized), _samples_of_last(sized, size)
    loader = DataLoader(lambda: _Filled(sized, size), num_steps=steps)
    for position, outputs in enumerate(_outputs(model, loader), start=1):
        yield outputs if position < steps or last == size else _first_of(outputs, size, last)


def _is_sized(batches: Iterable[Any]) -> TypeGuard[list[Any] | TorchLoader]:
    """Whether the number of batches and of samples is known, and they can be read again."""
    if isinstance(batches, list):
        return True
    return isinstance(batches, TorchLoader) and hasattr(batches.dataset, "__len__")


def _samples_of_last(batches: Any, size: int) -> int:
    if isinstance(batches, list):
        return _samples(batches[-1])
    if batches.drop_last or batches.batch_size is None:
        return size
    return len(batches.sampler) - (len(batches) - 1) * size


@dataclass(frozen=True)
class _Filled:
    """Batches of one size: what a smaller one lacks are copies of its last sample."""

    batches: Iterable[Any]
    size: int

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            lacks = self.size - _samples(batch)
            yield (
                pytree.tree_map_only(torch.Tensor, partial(_longer, by=lacks), batch) if lacks > 0 else batch
            )


def _longer(tensor: torch.Tensor, by: int) -> torch.Tensor:
    return torch.cat([tensor, tensor[-1:].expand(by, *tensor.shape[1:])])


def _samples(batch: Any) -> int:
    """First dimension of the tensors of a batch.

    Raises:
        InputError: there is no tensor in it, or one without dimensions.
    """
    tensors = [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor)]
    if not tensors or not tensors[0].ndim:
        raise InputError(
            f"a batch of predict() is a {type(batch).__name__} without a tensor that has samples, expected "
            "tensors whose first dimension counts them"
        )
    return tensors[0].size(0)


def _first_of(outputs: Any, size: int, count: int) -> Any:
    """The outputs of the first samples; what has none of them stays whole."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x[:count] if x.ndim and x.size(0) == size else x

    return pytree.tree_map_only(torch.Tensor, cut, outputs)


def _outputs(model: nn.Module, loader: DataLoader) -> Iterator[Any]:
    """The outputs of each batch of a loader, which every task of a job reads by itself."""
    program = Program.current()
    if model not in program.models and model not in program.cpu_models:
        prepare(model, None if current_backend(raise_exception=False) else "CSX")
    step = Program.current().predict_steps.setdefault(model, compile_step(partial(_call, ref(model))))
    found: list[Any] = []
    keep = step_closure(found.append)
    with _evaluating(model), torch.no_grad():
        for batch in loader:
            keep(step(batch))
            yield from found
            found.clear()


def _call(model: Callable[[], nn.Module | None], batch: Any) -> Any:
    called = model()
    assert called is not None, "the caller holds it"
    if isinstance(batch, Mapping):
        return called(**batch)
    return called(*batch) if isinstance(batch, tuple | list) else called(batch)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
