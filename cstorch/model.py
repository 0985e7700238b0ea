"""`cstorch.compile`, which places a model on its backend, and `cstorch.predict`."""

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

from cs_toolkit.garbage import infrequent_collection
from cstorch.amp.half import autocast
from cstorch.chosen_backend import Backend, choose, current_backend, execution_of, type_of
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
    """Move a model's parameters and buffers to the device of its backend, and return the model.

    Nothing is compiled yet: the first step is compiled when the shapes of a batch are known. On the CPU
    nothing moves, and nothing is compiled.

    The model gets the attribute `backend`, and `device` unless its class has one.

    Args:
        model: The model.
        backend: Return value of `cstorch.backend`, or its name. None means the backend of the program, or
            without one the CS system if `cstorch.configure` was called, else this CPU. The name "WSE_WS"
            selects weight streaming, unless `configure` has chosen an execution.

    Raises:
        CompileCallError: This is no module, or the backend is unavailable.
        ConfigureError: The program has another backend.
        ModelMovedError: The model is not on this CPU.
    """
    if not isinstance(model, nn.Module):
        raise CompileCallError(f"compile() got a {type(model).__name__}, expected a torch.nn.Module")
    chosen = _backend_of(backend)
    program = Program.current()
    compiled = program.cpu_models if chosen.is_cpu else program.models
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type not in ("cpu", chosen.torch_device.type):
            raise ModelMovedError(str(tensor.device), user_line())
    if not chosen.is_cpu:
        with infrequent_collection():
            move_to_device(model)
    object.__setattr__(model, "backend", chosen)
    if not hasattr(model, "device"):
        object.__setattr__(model, "device", chosen.torch_device)
    if model not in compiled:
        compiled.append(model)
        if chosen.is_cpu and chosen.mixed_precision:
            _autocast_forward(model)
    return model


def _autocast_forward(model: nn.Module) -> None:
    """Make the forward pass of a model, with a loss that it returns, run within `amp.autocast`."""
    entered: list[autocast] = []

    def enter(*_: object) -> None:
        entered.append(autocast())
        entered[-1].__enter__()

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter, prepend=True)
    model.register_forward_hook(leave, always_call=True)


def _backend_of(wanted: str | BackendType | Backend | None) -> Backend:
    """Return the backend that the program gives or has chosen, or that `configure` implies."""
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
    if kind is BackendType.CSX:  # the program calls `configure`, and not `backend`
        execution = None if wanted is None else execution_of(wanted)
        if execution is not None and configuration().options.execution == "auto":
            program.change_configuration(execution=execution)
        return Backend(kind)
    if wanted is None:
        log.info("the model runs on this CPU; for a CS system choose cstorch.backend('CSX')")
    return choose(kind)


def predict(model: nn.Module, data: Any) -> Any:
    """Compute a model in eval mode, and return its outputs as tensors of this CPU.

    The model is compiled if necessary, and its training mode is restored afterwards. A step that was compiled
    for the same shapes is not compiled again.

    Args:
        model: Called as `model(batch)`, as `model(*batch)` with a tuple or list, and as `model(**batch)` with
            a dict.
        data: One batch, a tensor or a tuple, list or dict of tensors whose first dimension counts samples. Or
            many batches: a `torch.utils.data.DataLoader` or another iterable, or a
            `cstorch.utils.data.DataLoader`, which workers read. The last batch may be smaller: it is padded
            with copies of its last sample, and outputs are cut. An output that is computed across samples,
            such as a mean loss, is that of the padded batch.

    Returns:
        The outputs of one batch, or an iterator over the outputs of many batches, in order.

    Raises:
        InputError: The data has no tensor, or batches of different shapes.
        cgc.errors.CompileError: The model cannot be compiled.
        cs_system.errors.CsSystemError: The system is unavailable or busy.
    """
    if isinstance(data, DataLoader):
        return _compute(model, data)
    is_nest = isinstance(data, tuple | list) and bool(data) and all(isinstance(x, torch.Tensor) for x in data)
    if isinstance(data, torch.Tensor | Mapping) or is_nest:
        (outputs,) = _compute_batches(model, [data])
        return outputs
    return _compute_batches(model, data)


def _compute_batches(model: nn.Module, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the outputs of batches of this process; the last one is padded to the size of the first."""
    sized = batches if _is_sized(batches) else list(batches)
    if not len(sized):
        raise InputError("predict() got no batch, expected one or more")
    size = _samples(next(iter(sized)))
    steps, last = len(sized), _samples_of_last(sized, size)
    loader = DataLoader(lambda: _Padded(sized, size), num_steps=steps)
    for position, outputs in enumerate(_compute(model, loader), start=1):
        yield outputs if position < steps or last == size else _cut(outputs, size, last)


def _is_sized(batches: Iterable[Any]) -> TypeGuard[list[Any] | TorchLoader]:
    """Return True if the numbers of batches and samples are known, and they can be read repeatedly."""
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
class _Padded:
    """Batches of one size: smaller ones are padded with copies of their last sample."""

    batches: Iterable[Any]
    size: int

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            missing = self.size - _samples(batch)
            if missing > 0:
                batch = pytree.tree_map_only(torch.Tensor, partial(_pad, by=missing), batch)
            yield batch


def _pad(tensor: torch.Tensor, by: int) -> torch.Tensor:
    return torch.cat([tensor, tensor[-1:].expand(by, *tensor.shape[1:])])


def _samples(batch: Any) -> int:
    """Return the first dimension of the tensors of a batch.

    Raises:
        InputError: The batch has no tensor, or the first one has no dimensions.
    """
    tensors = [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor)]
    if not tensors or not tensors[0].ndim:
        raise InputError(
            f"a batch of predict() is a {type(batch).__name__} without a tensor that has samples, expected "
            "tensors whose first dimension counts them"
        )
    return tensors[0].size(0)


def _cut(outputs: Any, size: int, count: int) -> Any:
    """Return the outputs of the first samples; outputs without a dimension of samples stay whole."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x[:count] if x.ndim and x.size(0) == size else x

    return pytree.tree_map_only(torch.Tensor, cut, outputs)


def _compute(model: nn.Module, loader: DataLoader) -> Iterator[Any]:
    """Yield the outputs of each batch of a loader."""
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
    module = model()
    assert module is not None, "the caller holds a reference"
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, tuple | list) else module(batch)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
