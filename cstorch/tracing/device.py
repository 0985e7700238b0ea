"""Tensors of the device: recorded while a step is traced, held on this CPU otherwise.

Inside a step PyTorch's C++ functionalization turns in-place writes and writes through views into operations
without side effects; it sits between a device tensor and its recorded values. So a device tensor may be
written through any view of it, and every other view sees the write. Outside of a step a device tensor is a
tensor of this CPU under another name: a program may initialize it, load into it and read it. What happens
inside a step is in `recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol
from weakref import ref

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing

from cstorch.errors import LostWriteError, ModelMovedError, TensorReadError, ValueUnavailableError
from cstorch.program import Program
from cstorch.tracing.places import user_line
from cstorch.tracing.values import META, Mode, Recorded, leaves, map_leaves

DEVICE = torch.device("xla", 0)
"""The device that these tensors report: existing programs look for this type after `cstorch.compile`."""

INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})

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
_MOVES = frozenset({torch.Tensor.to, torch.Tensor.cuda})
_SET_DATA = torch.Tensor.data.__set__


class Owner(Protocol):
    """Keeps the elements of tensors of the device while steps run."""

    @property
    def ended(self) -> bool:
        """True once the elements are back on this CPU, or lost."""
        ...

    def refresh(self, tensor: DeviceTensor) -> None:
        """Copy the elements of a tensor to this CPU."""
        ...


class Tracer(Protocol):
    """Records a step: all that happens to tensors of the device goes through the innermost tracer."""

    def call_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a PyTorch function that is given a device tensor."""
        ...

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an ATen operation."""
        ...

    def answer(self, method: str, tensor: DeviceTensor) -> Any:
        """Answer a method that reads a tensor whose value is not known; NotImplemented to refuse."""
        ...

    def static_value(self, tensor: DeviceTensor) -> torch.Tensor | None:
        """Return the elements of a tensor if they are the same in every step."""
        ...

    def value_if_unchanged(self, tensor: DeviceTensor, how: str) -> torch.Tensor | None:
        """Return the elements of a tensor if they depend only on state that the step has not changed."""
        ...

    def add_check(self, truth: Any, error: str) -> None:
        """Record a condition that must hold in every step."""
        ...


@dataclass
class _Tracers:
    stack: list[Tracer] = field(default_factory=list)


def tracers() -> list[Tracer]:
    """Return the tracers of the steps that are being traced, the innermost last."""
    return Program.current().part(_Tracers).stack


def is_tracing() -> bool:
    """Return True while a step is being traced."""
    return bool(tracers())


class DeviceTensor(torch.Tensor):
    """A tensor of the device.

    Attributes:
        host: its elements on this CPU; None for a value that only a step computes. A meta tensor if it
            depends on outputs of a step that is only compiled.
        elem: while a step is traced, the functional wrapper around its recorded value.
        base: the wrapper that `elem` is a view of; `elem` itself if it is none.
        owner: the loop on whose system its elements are, if one runs.
        selected: the rows that count, if a mask of values has selected them (`selections.Rows`).
    """

    # Libraries that choose an implementation by the package of an operand, as opt_einsum, choose PyTorch.
    __module__ = "torch"

    host: torch.Tensor | None
    elem: torch.Tensor | None
    selected: Any
    base: torch.Tensor | None
    owner: Owner | None

    @staticmethod
    def __new__(cls, like: torch.Tensor, host: torch.Tensor | None = None) -> DeviceTensor:
        """Make a tensor with the sizes of another one."""
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=META,
        )
        made.host, made.elem, made.base, made.owner = host, None, None, None
        made.selected = None
        return made

    def to_host(self) -> torch.Tensor:
        """Return its elements on this CPU, as they are after the last step.

        Raises:
            ValueUnavailableError: only a step computes it.
            StateUnavailableError: the system is at another step by now.
        """
        if self.host is None or self.host.is_meta:
            raise _read_error("read")
        if self.owner is not None:
            self.owner.refresh(self)
        return self.host

    def load(self, elements: torch.Tensor) -> None:
        """Replace its elements, in place."""
        assert self.host is not None
        target = self.host.data
        if elements.dtype == target.dtype and elements.is_contiguous() and target.is_contiguous():
            # `copy_` uses several threads, which wait for the cores that compute the next steps: 6.5 MB took
            # 5.4 ms of CPU time and 24 ms instead of 0.4 and 1.2.
            np.copyto(_as_bytes(target), _as_bytes(elements))
        else:
            target.copy_(elements)

    @property
    def device(self) -> torch.device:
        """The device of a compiled model."""
        return DEVICE

    @property
    def is_meta(self) -> bool:
        """False, or programs and `load_state_dict` would take it for a tensor without elements."""
        return False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a tensor of this CPU: `torch.save` writes files that need no toolkit."""
        host = readable(self, "saved")
        return (nn.Parameter(host) if isinstance(self, nn.Parameter) else host).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{readable(self, 'printed')!r} on {DEVICE}"

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _READING_METHODS and isinstance(args[0], DeviceTensor):
            return _read(func, args[0], args[1:], named)
        active = tracers()
        if active:
            return active[-1].call_function(func, args, named)
        return call_overridden(func, args, named, _call_on_host)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        active = tracers()
        return active[-1].record(func, args, named) if active else _run_on_host(func, args, named)


def _as_bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a contiguous tensor of this CPU."""
    found: np.ndarray[Any, Any] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return found


def from_array(array: np.ndarray[Any, Any], dtype: torch.dtype, *, copy: bool = True) -> torch.Tensor:
    """Return a tensor of this CPU in an element type; complex numbers are stored as pairs.

    Args:
        array: The elements.
        dtype: The element type.
        copy: If False, the tensor may share the memory of the array.
    """
    # PyTorch warns about memory that it must not write.
    elements = np.array(array) if copy or not array.flags.writeable else array
    if array.dtype.kind == "V":  # bfloat16, which numpy does not know
        made = torch.from_numpy(elements.view(np.int16)).view(torch.bfloat16)
    else:
        made = torch.from_numpy(elements)
    if dtype.is_complex:
        made = torch.view_as_complex(made)
    return made if made.dtype == dtype else made.to(dtype)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device with the elements of one of this CPU; one of the device as it is."""
    if isinstance(tensor, DeviceTensor):
        return tensor
    if tensor.layout is not torch.strided:  # the device has dense tensors only
        tensor = tensor.to_dense()
    made: torch.Tensor = DeviceTensor(tensor, tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


# Values of a step


def lift(value: Recorded) -> DeviceTensor:
    """Return a device tensor with a recorded value."""
    made = DeviceTensor(value)
    set_value(made, value)
    return made


def set_value(tensor: DeviceTensor, value: Recorded) -> None:
    """Set the value that a device tensor has before the step."""
    tensor.elem = tensor.base = torch._to_functional_tensor(value)
    value.recording.live.append(ref(tensor))


def value_of(tensor: DeviceTensor) -> Recorded:
    """Return the value of a device tensor at this point of the step, writes through its views included."""
    assert tensor.elem is not None
    torch._sync(tensor.elem)
    found = torch._from_functional_tensor(tensor.elem)
    assert isinstance(found, Recorded)
    return found


def require(condition: Any, error: Exception) -> None:
    """Raise an error if a condition is false; if only a step knows its value, check it in every step."""
    try:
        holds = bool(condition)
    except TensorReadError:
        if not tracers():
            raise
        tracers()[-1].add_check(condition, ": ".join(filter(None, [type(error).__name__, str(error)])))
    else:
        if not holds:
            raise error


# Reading


def readable(tensor: DeviceTensor, how: str) -> torch.Tensor:
    """Return the elements of a tensor on this CPU, wherever they are.

    Args:
        tensor: A tensor of the device.
        how: The kind of access, for the error.

    Raises:
        TensorReadError: In a step, of a value that steps do not share.
        ValueUnavailableError: Outside of a step, of a value that only a step computes.
    """
    active = tracers()
    tracer = active[-1] if active else None
    known = None if tracer is None else tracer.static_value(tensor)
    if known is not None:
        return known
    readers = Program.current().value_readers
    if readers and (tracer is not None or tensor.host is None):
        found = readers[-1](tensor)
        if found is not None:
            return found
    if tracer is not None:
        assumed = tracer.value_if_unchanged(tensor, how)
        if assumed is not None:
            return assumed
    if active or tensor.host is None:
        raise _read_error(how)
    return tensor.to_host()


def _read_error(how: str) -> TensorReadError | ValueUnavailableError:
    return TensorReadError(how, user_line()) if tracers() else ValueUnavailableError(how, user_line())


def _read(func: Any, tensor: DeviceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method that reads a tensor; in a step only if all steps share the value, or for a check.

    Raises:
        TensorReadError: in a step, of a value that steps do not share, and for no check.
        ValueUnavailableError: outside of one, of a value that only a step computes.
    """
    active = tracers()
    if active and active[-1].static_value(tensor) is None:
        answer = active[-1].answer(func.__name__, tensor)
        if answer is not NotImplemented:
            return answer
    return func(readable(tensor, f"read by {func.__name__}()"), *args, **kwargs)


# Functions of PyTorch


def call_overridden(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    otherwise: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> Any:
    """Call a function that tensors of the device define, inside and outside of a step; else `otherwise`."""
    if func in _MOVES and isinstance(args[0], DeviceTensor):
        return _move(func, args[0], args[1:], kwargs)
    if func is torch.Tensor.type:
        return _convert(*args, **kwargs)
    if func == _SET_DATA and _write_data(*args):
        return None
    if func in INDEXING:
        args = (args[0], _to_index(args[1]), *args[2:])
    return otherwise(func, args, kwargs)


def call_below(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
    """Call a function of PyTorch without `__torch_function__`."""
    # Tensor.__torch_function__ would wrap results on this CPU, as of `cpu.view_as(device)`, for the device.
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


def _call_on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is torch.Tensor.new_tensor:  # no operation of the device: its result would be on META
        return func(args[0].to_host(), *args[1:], **{"device": DEVICE, **kwargs})
    with _HostFactories():
        return call_below(func, args, kwargs)


class _HostFactories(Mode):
    """Outside of a step: operations that PyTorch composes of others make tensors on this CPU, not on META."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if keywords.get("device") == META:
            keywords["device"] = torch.device("cpu")
        return func(*args, **keywords)


def _move(func: Any, tensor: DeviceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Convert a tensor to another type, or read it for this CPU; on the device it stays where it is.

    Raises:
        ModelMovedError: to another device.
        TensorReadError: to this CPU, in a step.
    """
    if func is torch.Tensor.cuda:
        raise ModelMovedError("cuda", user_line())
    copy = bool(kwargs.pop("copy", False))
    flags = [place for place, given in enumerate(args) if isinstance(given, bool)]
    if len(flags) == 2:  # non_blocking and copy: _parse_to knows only the first
        copy, args = args[flags[1]], args[: flags[1]]
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    dtype = tensor.dtype if dtype is None else dtype
    if device is None or device.type in (DEVICE.type, META.type):  # PyTorch takes ours for META
        found: torch.Tensor = tensor if dtype == tensor.dtype else tensor.type(dtype)
        return found.clone() if copy and found is tensor else found
    if device.type != "cpu":
        raise ModelMovedError(str(device), user_line())
    return readable(tensor, "read by to('cpu')").to(dtype, copy=copy)


def _convert(tensor: DeviceTensor, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Any:
    """`Tensor.type`: the name of a tensor's type, which is that on a CPU, or the tensor in another type."""
    if dtype is None:
        return torch.empty(0, dtype=tensor.dtype).type()
    if not isinstance(dtype, torch.dtype):  # a name or a class, which also names the device of the result
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        dtype = torch.empty(0).type(name.replace(".cuda.", ".")).dtype
    return call_below(torch.Tensor.type, (tensor, dtype), None)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _write_data(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Write the elements of `tensor.data = value` into a tensor of the device.

    Returns:
        False if the value has another shape or type; nothing is written then.
    """
    # PyTorch would give the tensor the storage of the value, and tensors of the device have none.
    fits = isinstance(tensor, DeviceTensor) and (value.shape, value.dtype) == (tensor.shape, tensor.dtype)
    if fits and value is not tensor:
        tensor.copy_(value)
    return fits


def _to_index(index: Any) -> Any:
    """Return an index with tensors instead of its lists."""
    # PyTorch makes tensors of lists on the meta device, where their numbers are lost.
    if isinstance(index, tuple):
        return tuple(_to_tensor(part) if isinstance(part, list | tuple) else part for part in index)
    return _to_tensor(index) if isinstance(index, list) else index


def _to_tensor(given: Any) -> torch.Tensor:
    """Return a tensor of a nest of numbers, of which some may be tensors of the device."""
    if not isinstance(given, list | tuple) or not any(isinstance(x, DeviceTensor) for x in leaves([*given])):
        return torch.tensor(given)
    return torch.stack([x if isinstance(x, torch.Tensor) else _to_tensor(x) for x in given])


# Operations outside of a step


def _run_on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation outside of a step on this CPU, on outputs of the last step too.

    Raises:
        ValueUnavailableError: An argument is of a step, and no loop returned it or the operation writes it.
        LostWriteError: The system has the elements that the operation writes.
    """
    written = {id(x) for x in tensors_written(func, args)}

    def unwrap(x: Any) -> Any:
        if isinstance(x, DeviceTensor):
            output = None if id(x) in written else _output_of(x)
            return readable(x, f"read by {func}") if output is None else output
        return torch.device("cpu") if x == DEVICE else x

    def to_meta(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.to(META)
        return META if isinstance(x, torch.device) else x

    def wrap(host: Any) -> Any:
        is_foreign = isinstance(host, torch.Tensor) and not isinstance(host, DeviceTensor)
        return DeviceTensor(host, host) if is_foreign else host

    for given in tensors_written(func, args):
        # While the system has the elements of a tensor, only a step may write them.
        if isinstance(given, DeviceTensor) and given.owner is not None and not given.owner.ended:
            raise LostWriteError(str(func), user_line())
    host_args, host_kwargs = map_leaves(unwrap, (args, kwargs))
    if any(isinstance(x, torch.Tensor) and x.is_meta for x in leaves((host_args, host_kwargs))):
        # Outputs of a step that is only compiled have no elements: operations on them give sizes and types.
        host_args, host_kwargs = map_leaves(to_meta, (host_args, host_kwargs))
    outs = map_leaves(wrap, func(*host_args, **host_kwargs))
    if func.is_view and isinstance(args[0], DeviceTensor) and args[0].host is not None:
        for view in leaves(outs):
            view.owner = _BaseOwner(args[0])
    return return_and_correct_aliasing(func, args, kwargs, outs)


def tensors_written(func: Any, args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operation writes into."""
    for argument, given in zip(func._schema.arguments, args, strict=False):
        info = argument.alias_info
        if info is not None and info.is_write and isinstance(given, torch.Tensor):
            yield given


def _output_of(tensor: DeviceTensor) -> torch.Tensor | None:
    """Return the output of a running loop's last step, or a tensor computed from one; None for others."""
    if tensor.host is not None:
        return tensor.host if tensor.host.is_meta else None
    found = (read(tensor) for read in reversed(Program.current().output_readers))
    return next((x for x in found if x is not None), None)


@dataclass(frozen=True)
class _BaseOwner:
    """Owner of a view: its elements are with those of its base, wherever these are."""

    base: DeviceTensor

    @property
    def ended(self) -> bool:
        return self.base.owner is None or self.base.owner.ended

    def refresh(self, tensor: DeviceTensor) -> None:
        self.base.to_host()


# Factories outside of a step: `torch.zeros(..., device=device)` and `tensor.to(device)`. PyTorch asks the
# backend of a device for memory, and here the memory is this CPU's.


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _place(torch.empty(size, dtype=dtype))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _place(torch.empty_strided(size, stride, dtype=dtype))


def _place(host: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device, or of this CPU if `torch.tensor(data, device=...)` will fill it."""
    # It fills the tensor with Python dispatch off, and then passes it to `lift_fresh`.
    hidden = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
    if hidden:
        _register_lift_fresh()
        _unfilled[:] = [host]
    return host if hidden else DeviceTensor(host, host)


_unfilled: list[torch.Tensor] = []
"""The last tensor that `torch.tensor(data, device=...)` has asked for, until it is filled."""


@cache
def _register_lift_fresh() -> None:
    # Not before a program needs it: it makes each `torch.tensor` of a process slower by a quarter.
    _library.impl("lift_fresh", _lift_fresh, "CPU")


def _lift_fresh(made: torch.Tensor) -> torch.Tensor:
    """Move the filled tensor to the device: a step may write into it, as into any tensor of the device.

    PyTorch calls this last, for the results of `torch.tensor` and `torch.as_tensor` on this CPU too.
    """
    if not _unfilled or _unfilled[0] is not made:
        return made
    return DeviceTensor(made, _unfilled.pop())


_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "XLA")
_library.impl("empty_strided", _empty_strided, "XLA")
