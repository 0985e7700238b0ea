"""What a model makes of data, computed on the CS system with one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader as TorchLoader

from cstorch.backends import current_backend
from cstorch.compiled import cpu_models, models
from cstorch.errors import InputError
from cstorch.input.loader import DataLoader
from cstorch.loop.steps import compile_step, step_closure
from cstorch.model import prepare

_steps: WeakKeyDictionary[nn.Module, Callable[[Any], Any]] = WeakKeyDictionary()
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
    if model not in models and model not in cpu_models:
        prepare(model, None if current_backend(raise_exception=False) else "CSX")
    step = _steps.setdefault(model, compile_step(partial(_call, ref(model))))
    found: list[Any] = []
    keep = step_closure(found.append)
    with _evaluated(model), torch.no_grad():
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
def _evaluated(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
