"""Values of a step as PyTorch's operations see them, and nests of values. Importing it loads no compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from cgc.importers.aten import Tensor


def map_leaves(function: Callable[[Any], Any], nest: Any) -> Any:
    """Return a nest of the same shape with a function applied to each leaf."""
    kind = type(nest)
    if kind is tuple:
        return tuple([map_leaves(function, x) for x in nest])
    if kind is list:
        return [map_leaves(function, x) for x in nest]
    if kind is dict:
        return {name: map_leaves(function, x) for name, x in nest.items()}
    return function(nest)


def leaves(nest: Any) -> Iterator[Any]:
    """Yield the leaves of a nest, in order."""
    kind = type(nest)
    if kind is tuple or kind is list:
        for x in nest:
            yield from leaves(x)
    elif kind is dict:
        for x in nest.values():
            yield from leaves(x)
    else:
        yield nest


class Mode(TorchDispatchMode):
    """A dispatch mode that `torch.compile` never sees."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If True, PyTorch imports Dynamo to exclude the mode: 1.4 s of CPU time at the start of a program.
        return False


META = torch.device("meta")


class Graph(Protocol):
    """Keeps the values of a step and the operations between them (`recording.Recording`)."""

    live: list[ref[Any]]

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation on values."""
        ...


class Recorded(torch.Tensor):
    """A value of the graph, as operations see it: sizes, strides and element type, no data."""

    meta: torch.Tensor
    value: Tensor
    recording: Graph

    @staticmethod
    def __new__(cls, meta: torch.Tensor, value: Tensor, recording: Graph) -> Recorded:
        """Make a value with the sizes of a meta tensor."""
        made: Recorded = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=META,
        )
        made.meta, made.value, made.recording = meta, value, recording
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        first = next(x for x in leaves((args, keywords)) if isinstance(x, Recorded))
        return first.recording.call(func, args, keywords)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"%{self.value.id}: {self.value.dtype}{list(self.value.shape)}"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the numpy name of an element type."""
    return str(dtype).removeprefix("torch.")


def array_type(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Return the element type and shape that `to_array` gives for a tensor."""
    is_pair = tensor.dtype == torch.complex64
    return ("float32", (*tensor.shape, 2)) if is_pair else (dtype_name(tensor.dtype), tuple(tensor.shape))


def to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the elements of a tensor of this CPU; bfloat16 in ml_dtypes' type, complex numbers as pairs."""
    import ml_dtypes

    tensor = tensor.detach().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()
