"""Lazy tensors: tensors of the device while a step is recorded.

PyTorch's C++ functionalization turns writes in place and writes through views into operations that change
nothing; it stands between a lazy tensor and the recorded values. So a lazy tensor may be written through any
view of it, and every other view sees that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from cstorch.errors import RandomOutsideError, TensorReadError, TensorWriteError
from cstorch.tracing.places import user_line
from cstorch.tracing.record import META, Recorded, Recording

DEVICE = torch.device("xla", 0)
"""What lazy tensors say they are on: existing programs look for this type after `cstorch.compile`."""

_READS = frozenset({torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default})
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


class LazyTensor(torch.Tensor):
    """A tensor of the device: a functional wrapper around recorded values.

    Attributes:
        elem: the functional wrapper.
        base: the wrapper that `elem` is a view of; `elem` itself where it is none.
    """

    elem: torch.Tensor
    base: torch.Tensor

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> LazyTensor:
        made: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.shape,
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device=META,
        )
        made.elem = made.base = elem
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of a compiled model."""
        return DEVICE

    def __repr__(self, *, tensor_contents: object = None) -> str:
        raise TensorReadError("printed", user_line())

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _READING_METHODS:
            raise TensorReadError(f"read by {func.__name__}()", user_line())
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        recording = _recording_of((args, keywords))
        return _dispatch(recording, func, args, keywords)


_READING_METHODS = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.item,
        torch.Tensor.cpu,
        torch.Tensor.__array__,
        torch.Tensor.__bool__,
        torch.Tensor.__float__,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
        torch.Tensor.__format__,
    }
)


class Recorder(TorchDispatchMode):
    """Sees every operation of a step, also those that make a tensor on the device out of nothing."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        leaves = pytree.tree_leaves((args, keywords))
        if any(isinstance(x, LazyTensor) for x in leaves):
            return _dispatch(self._recording, func, args, keywords)
        if keywords.get("device") in (DEVICE, META):  # operations that are made of others see META
            return self._made(func, args, keywords)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise RandomOutsideError(str(func), user_line())
        return func(*args, **keywords)

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.aten._to_copy.default:
            return lift(self._recording.constant(args[0].to(kwargs.get("dtype") or args[0].dtype)))
        found = self._recording.call(func, args, {**kwargs, "device": META})
        return pytree.tree_map_only(Recorded, lift, found)


def lift(value: Recorded) -> LazyTensor:
    """A lazy tensor with a value."""
    return LazyTensor(torch._to_functional_tensor(value))


def current(tensor: LazyTensor) -> Recorded:
    """The value that a lazy tensor has now, all writes through views of it included."""
    torch._sync(tensor.elem)
    found = torch._from_functional_tensor(tensor.elem)
    assert isinstance(found, Recorded)
    return found


def _recording_of(arguments: Any) -> Recording:
    lazy = next(x for x in pytree.tree_leaves(arguments) if isinstance(x, LazyTensor))
    return current(lazy).recording


def _dispatch(recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func in _READS:
        raise TensorReadError("read", user_line())
    _refuse_foreign_writes(func, args)
    strided = func is torch.ops.aten.as_strided.default

    def unwrap(x: Any) -> Any:
        if isinstance(x, LazyTensor):
            # strides and offset count in the whole storage, and a view of a view has no such rule
            return x.base if strided else x.elem
        if isinstance(x, torch.Tensor):
            return torch._to_functional_tensor(recording.constant(x))
        return META if isinstance(x, torch.device) else x

    func, args = _declared(func, args)
    inner_args, inner_kwargs = pytree.tree_map(unwrap, (args, kwargs))
    found = _functionalized(func, inner_args, inner_kwargs)
    outs = pytree.tree_map(_wrap, found)
    leaves = [x for x in pytree.tree_leaves(outs) if isinstance(x, LazyTensor)]
    if func.is_view and isinstance(args[0], LazyTensor):
        for leaf in leaves:
            leaf.base = args[0].base
    return return_and_correct_aliasing(func, args, kwargs, outs) if leaves else outs


def _declared(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A batch norm that says in its schema that it writes its running moments, in place of one that does not."""
    if func is not torch.ops.aten.native_batch_norm.default:
        return func, args
    x, weight, bias, mean, variance, training, momentum, eps = args
    if not training:
        without_training = torch.ops.aten._native_batch_norm_legit_no_training.default
        return without_training, (x, weight, bias, mean, variance, momentum, eps)
    if mean is None:
        return torch.ops.aten._native_batch_norm_legit.no_stats, (x, weight, bias, True, momentum, eps)
    return torch.ops.aten._native_batch_norm_legit.default, args


def _functionalized(func: Any, args: Any, kwargs: Any) -> Any:
    include = torch._C._dispatch_tls_local_include_set() | _FUNCTIONALIZE
    exclude = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.Functionalize)
    with torch._C._ForceDispatchKeyGuard(include, exclude):
        before = torch._functionalize_enable_reapply_views(True)
        try:
            return func(*args, **kwargs)
        finally:
            torch._disable_functionalization()
            torch._functionalize_enable_reapply_views(before)


def _wrap(x: Any) -> Any:
    return LazyTensor(x) if isinstance(x, torch.Tensor) and torch._is_functional_tensor(x) else x


def _refuse_foreign_writes(func: Any, args: tuple[Any, ...]) -> None:
    """A tensor that the program made on this CPU is a constant of the step, and keeps its elements."""
    for argument, given in zip(func._schema.arguments, args, strict=False):
        info = argument.alias_info
        written = info is not None and info.is_write
        if written and isinstance(given, torch.Tensor) and not isinstance(given, LazyTensor):
            raise TensorWriteError(str(func), user_line())
