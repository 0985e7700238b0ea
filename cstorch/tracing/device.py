"""Tensors of the device: recorded while a step is traced, and held on this CPU outside of one.

Inside a step PyTorch's C++ functionalization turns writes in place and writes through views into operations
that change nothing; it stands between a device tensor and the recorded values. So a device tensor may be
written through any view of it, and every other view sees that. Outside of a step a device tensor is a tensor
of this CPU under another name: a program may initialize it, load into it and read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import numpy as np
import torch
from torch import nn
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import return_and_correct_aliasing

from cstorch.decompositions import rule_of, running_rule
from cstorch.errors import (
    LostWriteError,
    ModelMovedError,
    RandomOutsideError,
    TensorReadError,
    TensorWriteError,
    ValueNotThereError,
)
from cstorch.precision import is_mixed
from cstorch.tracing.autocast import OF_ONE_TYPE, following_autocast, widen_mixed
from cstorch.tracing.composed import COMPOSED, composing
from cstorch.tracing.composed.operations import DECOMPOSED
from cstorch.tracing.dynamo import appearing_compiled
from cstorch.tracing.masks import PLACING, found_places, indexed, is_by_values
from cstorch.tracing.modes import Mode
from cstorch.tracing.nests import leaves, mapped
from cstorch.tracing.parts import SPLITTING, parts_of, sizes_of
from cstorch.tracing.places import user_line
from cstorch.tracing.selections import Rows, apply, compare_count, name_of, rows_of, writes_in_place
from cstorch.tracing.unrolled import UnrolledLoop
from cstorch.tracing.values import META, Recorded

if TYPE_CHECKING:
    from cstorch.tracing.record import Recording

DEVICE = torch.device("xla", 0)
"""What device tensors say they are on: existing programs look for this type after `cstorch.compile`."""

_READS = frozenset(
    {
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.equal.default,
        torch.ops.aten.allclose.default,
    }
)
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
_aten = torch.ops.aten
log = logging.getLogger("cstorch")


class Owner(Protocol):
    """Who keeps the elements of tensors of the device while steps run."""

    @property
    def ended(self) -> bool:
        """It has given them back, or they are lost."""
        ...

    def refresh(self, tensor: DeviceTensor) -> None:
        """Brings the elements of a tensor to this CPU."""
        ...


class DeviceTensor(torch.Tensor):
    """A tensor of the device.

    Attributes:
        host: its elements on this CPU; None for what only a step computes. It has sizes only where it follows
            from what a step returned that is only compiled.
        elem: while a step is traced the functional wrapper around its recorded value.
        base: the wrapper that `elem` is a view of; `elem` itself where it is none.
        owner: the loop on whose system its elements are, if one runs.
        selected: which of its rows count, where a mask of values has selected them.
    """

    # Libraries that choose how to compute by the package of an operand, as opt_einsum does, choose PyTorch.
    __module__ = "torch"

    host: torch.Tensor | None
    elem: torch.Tensor | None
    selected: Rows | None
    base: torch.Tensor | None
    owner: Owner | None

    @staticmethod
    def __new__(cls, like: torch.Tensor, host: torch.Tensor | None = None) -> DeviceTensor:
        """A tensor with the sizes of another one."""
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

    def held(self) -> torch.Tensor:
        """Its elements on this CPU, as they are after the last step.

        Raises:
            ValueNotThereError: only a step computes it.
            StateNotThereError: the system is at another step by now.
        """
        if self.host is None or self.host.is_meta:
            raise _unreadable("read")
        if self.owner is not None:
            self.owner.refresh(self)
        return self.host

    def load(self, elements: torch.Tensor) -> None:
        """New elements, in place."""
        assert self.host is not None
        self.host.data.copy_(elements)

    @property
    def device(self) -> torch.device:
        """The device of a compiled model."""
        return DEVICE

    @property
    def is_meta(self) -> bool:
        """False: programs, and `load_state_dict`, would take it for a tensor without elements."""
        return False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a tensor of this CPU: `torch.save` writes files that need no toolkit."""
        held = _readable(self, "saved")
        return (nn.Parameter(held) if isinstance(self, nn.Parameter) else held).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{_readable(self, 'printed')!r} on {DEVICE}"

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _READING_METHODS and isinstance(args[0], DeviceTensor):
            return _read(func, args[0], args[1:], dict(kwargs or {}))
        recording = _tracing()
        if recording is not None and (recording.selects or func in _SELECTING):
            found = _selected(cls, recording, func, args, dict(kwargs or {}))
            if found is not NotImplemented:
                return found
        return cls._function(recording, func, args, kwargs)

    @classmethod
    def _function(
        cls,
        recording: Recording | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        """A function of tensors all of whose rows count."""
        if func in _MOVES and isinstance(args[0], DeviceTensor):
            return _moved(func, args[0], args[1:], dict(kwargs or {}))
        if recording is not None and not recording.roots and func in _GRADIENT:
            recording.sees_gradients = True
        if func is torch.Tensor.type:
            return _typed(args[0], *args[1:], **(kwargs or {}))
        if func == _SET_DATA and _write_data(*args):
            return None
        if func is torch.Tensor.backward and recording is not None:
            recording.roots.append(args[0])
            recording.forward_nodes = recording.forward_nodes or len(recording.graph.nodes)
        if func in _INDEXED:
            args = (args[0], _indices(args[1]), *args[2:])
        if recording is None:
            if func is torch.Tensor.new_tensor:  # no operation of the device: it would be made as META
                return func(args[0].held(), *args[1:], **{"device": DEVICE, **(kwargs or {})})
            with _HostFactories():
                return _called(func, args, kwargs)
        if func in _INDEXED and (found := _at_numbers(recording, args[0], args[1])) is not None:
            rows = _called(func, (*found, *args[2:]), kwargs)
            return rows if rows is None else rows.squeeze(0)
        if func in _INDEXED and recording.loops:
            args = (args[0], _inside(recording, args[0], args[1]), *args[2:])
        if func in _OF_ONE_DEVICE:
            args, kwargs = mapped(_on_device, (args, kwargs))
        if func in OF_ONE_TYPE and recording.places.computes_half(is_mixed()):
            args, kwargs = widen_mixed(args, kwargs)
        if func in COMPOSED:
            return COMPOSED[func](*args, **(kwargs or {}))
        return _called(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        recording = _tracing()
        if recording is None:
            return _on_host(func, args, dict(kwargs or {}))
        return _recorded(recording, func, args, dict(kwargs or {}))


def _called(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
    """A function of PyTorch without `__torch_function__`.

    `Tensor.__torch_function__` would take results on this CPU, as of `cpu.view_as(device)`, for the device's.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


_SET_DATA = torch.Tensor.data.__set__


@torch.no_grad()  # type: ignore[untyped-decorator]
def _write_data(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Write the elements of `tensor.data = value` into a tensor of the device.

    PyTorch would give it the storage of the value, and tensors of the device have none. Returns False,
    and writes nothing, where the value has another shape or type.
    """
    fits = isinstance(tensor, DeviceTensor) and (value.shape, value.dtype) == (tensor.shape, tensor.dtype)
    if fits and value is not tensor:
        tensor.copy_(value)
    return fits


_GRADIENT = frozenset({torch.Tensor.grad.__get__, torch.Tensor.grad.__set__, torch.Tensor.grad.__delete__})

_OF_ONE_DEVICE = frozenset(
    {torch.stft, torch.istft, torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu}
)
"""PyTorch compares the devices of their arguments before it calls an operation."""


def _on_device(x: Any) -> Any:
    """Copy a window or a first state of this CPU to the device; sizes of packed sequences stay here."""
    is_copied = isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.is_floating_point()
    return x.to(META) if is_copied else x


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


def _read(func: Any, tensor: DeviceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a method that reads a tensor gives: in a step where all steps share the value, or for a check.

    Raises:
        TensorReadError: in a step, of a value that steps do not share, and for no check.
        ValueNotThereError: outside of one, of what only a step computes.
    """
    recording = _tracing()
    if recording is not None and _known(recording, tensor) is None:
        answer: Any = NotImplemented
        if func.__name__ in _CHECKING:
            answer = recording.checks.answer(func.__name__, tensor)
        elif func.__name__ == "tolist":
            answer = sizes_of(tensor)
        if answer is not NotImplemented:
            return answer
    return func(_readable(tensor, f"read by {func.__name__}()"), *args, **kwargs)


_CHECKING = frozenset({"__bool__", "__float__", "__format__", "__int__", "item"})


_MOVES = frozenset({torch.Tensor.to, torch.Tensor.cuda})


def _moved(func: Any, tensor: DeviceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A tensor of another type or place: one of the device stays there, or is read for this CPU.

    Raises:
        ModelMovedError: to another device.
        TensorReadError: to this CPU, in a step.
    """
    if func is torch.Tensor.cuda:
        raise ModelMovedError("cuda", user_line())
    copy = bool(kwargs.pop("copy", False))
    flags = [place for place, given in enumerate(args) if isinstance(given, bool)]
    if len(flags) == 2:  # non_blocking and copy, of which the parser has no second one
        copy, args = args[flags[1]], args[: flags[1]]
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    dtype = tensor.dtype if dtype is None else dtype
    if device is None or device.type in (DEVICE.type, META.type):  # torch takes ours for META
        found: torch.Tensor = tensor if dtype == tensor.dtype else tensor.type(dtype)
        return found.clone() if copy and found is tensor else found
    if device.type != "cpu":
        raise ModelMovedError(str(device), user_line())
    return _readable(tensor, "read by to('cpu')").to(dtype, copy=copy)


def _typed(tensor: DeviceTensor, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Any:
    """`Tensor.type`: the name of a tensor's type, which is that on a CPU, or the tensor in another type."""
    if dtype is None:
        return torch.empty(0, dtype=tensor.dtype).type()
    if not isinstance(dtype, torch.dtype):  # a name or a class, which says where the result lies as well
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        dtype = torch.empty(0).type(name.replace(".cuda.", ".")).dtype
    return _called(torch.Tensor.type, (tensor, dtype), None)


_INDEXED = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})


def _indices(index: Any) -> Any:
    """Sequences of an index as tensors; PyTorch would make them on the meta device, without their numbers."""
    if isinstance(index, tuple):
        return tuple(_numbers(part) if isinstance(part, list | tuple) else part for part in index)
    return _numbers(index) if isinstance(index, list) else index


def _numbers(given: Sequence[Any]) -> torch.Tensor:
    """A tensor of a nest of numbers, of which some may be tensors of the device."""
    if not any(isinstance(x, DeviceTensor) for x in leaves(list(given))):
        return torch.tensor(given)
    return torch.stack([x if isinstance(x, torch.Tensor) else _numbers_or_one(x) for x in given])


def _numbers_or_one(given: Any) -> torch.Tensor:
    return _numbers(given) if isinstance(given, list | tuple) else torch.tensor(given)


def _inside(recording: Recording, x: torch.Tensor, index: Any) -> Any:
    """The index of a loop's body, with a known number for the first dimension in that dimension."""
    if not isinstance(index, DeviceTensor) or index.dim() or index.dtype not in _WHOLE or not x.dim():
        return index
    known = _known(recording, index)
    return index if known is None else recording.loops[-1].inside(int(known), x.size(0))


def _at_numbers(
    recording: Recording, x: torch.Tensor, index: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
    """Write an index with numbers that only a step knows, as of `x[:, i]`, as one with lists of one number.

    PyTorch would read the numbers.

    Returns:
        A view of the tensor whose first dimensions have such numbers, and those; None for other indices.
    """
    elements = index if isinstance(index, tuple) else (index,)

    def is_number(element: Any) -> bool:
        whole = isinstance(element, DeviceTensor) and not element.dim() and element.dtype in _WHOLE
        return whole and _known(recording, element) is None

    numbers = [element for element in elements if is_number(element)]
    others = [element for element in elements if not is_number(element)]
    if not numbers or any(isinstance(element, torch.Tensor | bool) for element in others):
        return None
    taken = sum(element is not None and element is not Ellipsis for element in elements)
    dimensions, dimension = [], 0
    for element in elements:
        if is_number(element):
            dimensions.append(dimension)
        if element is Ellipsis:
            dimension += x.dim() - taken
        elif not isinstance(element, int):
            dimension += 1
    around = tuple(slice(None) if is_number(element) else element for element in elements)
    with torch._C.DisableTorchFunctionSubclass():
        view = x[around].movedim(dimensions, list(range(len(dimensions))))
        return view, tuple(number.reshape(1) for number in numbers)


_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})

_SELECTING = frozenset({*_INDEXED, *PLACING, *SPLITTING, torch.where})


def _selected(
    cls: type[DeviceTensor],
    recording: Recording,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A function that makes a selection of rows, or is given some; NotImplemented for all others."""

    def read(mask: torch.Tensor) -> torch.Tensor | None:
        return _known(recording, mask) if isinstance(mask, DeviceTensor) else mask

    def key(mask: torch.Tensor) -> Any:
        if not isinstance(mask, DeviceTensor):
            return id(mask)
        if mask.elem is None or not _is_of(mask, recording):
            recording.meet(mask)
        return recording.key(value_of(mask).value)

    def plain(*args: Any, **kwargs: Any) -> Any:
        return cls._function(recording, func, args, kwargs)

    plain.__name__ = name = name_of(func)
    found: Any = NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        if func in _INDEXED:
            if not is_by_values(args):
                return NotImplemented
            found = indexed(plain, args, read, key)
        elif func in PLACING or (func is torch.where and len(args) + len(kwargs) == 1):
            found = found_places(func.__name__, args, kwargs, read, key)
        elif func in SPLITTING and not any(rows_of(x) is not None for x in leaves((args, kwargs))):
            found = parts_of(args, kwargs, key)
        elif (
            name == "unbind"
            and args[1:] in ((), (0,))
            and (rows := rows_of(args[0])) is not None
            and not rows.inner
        ):
            found = UnrolledLoop(args[0], rows.mask, recording)
        elif any(rows_of(x) is not None for x in leaves((args, kwargs))):
            found = apply(plain, name, args, kwargs, in_place=writes_in_place(func.__name__))
        else:
            found = compare_count(name, args)
    recording.selects |= any(rows_of(x) is not None for x in leaves(found))
    return found


class Recorder(Mode):
    """Sees every operation of a step, also those that make a tensor on the device out of nothing."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        self._own_storages: set[int] = set()  # of the tensors that the step has made on this CPU

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if any(isinstance(x, DeviceTensor) for x in leaves((args, keywords))):
            return _recorded(self.recording, func, args, keywords)
        if keywords.get("device") in (DEVICE, META):  # operations that are made of others see META
            return self._made(func, args, keywords)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._drawn(func, args, keywords)
        found = func(*args, **keywords)
        self._see_host(func, args, found)
        return found

    def _see_host(self, func: Any, args: tuple[Any, ...], found: Any) -> None:
        """Report a write into a tensor that this CPU had before the step: only the recording does it."""
        read = _storages(args)
        made = _storages(found) if func is _aten.lift_fresh.default else _storages(found) - read
        self._own_storages |= made
        if not _storages(list(_written(func, args))) <= self._own_storages:
            _report_host_write(str(func), user_line() or "line unknown")

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw what a program draws on this CPU on the device, where every step draws other numbers.

        Raises:
            RandomOutsideError: the numbers are of a generator, or written into a tensor, of this CPU.
        """
        given = leaves((args, kwargs))
        if any(isinstance(x, torch.Tensor | torch.Generator) for x in given):
            raise RandomOutsideError(str(func), user_line())
        return self._made(func, args, kwargs)

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _aten._to_copy.default:
            return lifted(self.recording.constant(args[0].to(kwargs.get("dtype") or args[0].dtype)))
        found = self.recording.call(func, args, {**kwargs, "device": META})
        return mapped(lambda x: lifted(x) if isinstance(x, Recorded) else x, found)


def _storages(nest: Any) -> set[int]:
    tensors = (x for x in leaves(nest) if isinstance(x, torch.Tensor) and x.layout is torch.strided)
    return {x.untyped_storage()._cdata for x in tensors}


@cache
def _report_host_write(operation: str, line: str) -> None:
    log.warning(
        "%s: %s writes into a tensor of this CPU when the step is recorded, and not again in later steps; "
        "make it a buffer of the compiled model, or write outside of the step",
        line,
        operation,
    )


class _HostFactories(Mode):
    """Outside of a step: what an operation is composed of makes its tensors on this CPU, not as META."""

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


_recorders: list[Recorder] = []


@contextmanager
def tracing(recording: Recording) -> Iterator[None]:
    """Records what the body does with device tensors."""
    recorder = Recorder(recording)
    _recorders.append(recorder)
    try:
        where = recording.places
        with where.following(), following_autocast(where), composing(), appearing_compiled(), recorder:
            yield
    finally:
        _recorders.pop()


def _tracing() -> Recording | None:
    return _recorders[-1].recording if _recorders else None


def is_tracing() -> bool:
    """Whether a step is being traced."""
    return bool(_recorders)


def current_recording() -> Recording | None:
    """What the step is written to that is being traced, if one is."""
    return _tracing()


def from_array(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this CPU, in an element type; complex numbers are made of pairs."""
    if array.dtype.kind == "V":  # bfloat16, which numpy does not know
        made = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    else:
        made = torch.from_numpy(np.array(array))
    if dtype.is_complex:
        made = torch.view_as_complex(made)
    return made if made.dtype == dtype else made.to(dtype)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of this CPU as one of the device, with the same elements; what is there already stays."""
    if isinstance(tensor, DeviceTensor):
        return tensor
    if tensor.layout is not torch.strided:  # the device has dense tensors only
        tensor = tensor.to_dense()
    made: torch.Tensor = DeviceTensor(tensor, tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def lifted(value: Recorded) -> DeviceTensor:
    """A device tensor with a recorded value."""
    made = DeviceTensor(value)
    set_value(made, value)
    return made


def set_value(tensor: DeviceTensor, value: Recorded) -> None:
    """Gives a device tensor its value before the step."""
    tensor.elem = tensor.base = torch._to_functional_tensor(value)
    value.recording.made.append(ref(tensor))


def value_of(tensor: DeviceTensor) -> Recorded:
    """The value that a device tensor has at this point of the step, writes through its views included."""
    assert tensor.elem is not None
    torch._sync(tensor.elem)
    found = torch._from_functional_tensor(tensor.elem)
    assert isinstance(found, Recorded)
    return found


readers: list[Callable[[DeviceTensor], torch.Tensor | None]] = []
"""The last one is asked for elements that are not on this CPU: a session ends its step to give them."""

output_readers: list[Callable[[torch.Tensor], torch.Tensor | None]] = []
"""Loops that run, innermost last: each gives what its last step returned to operations between steps."""


def _is_of(tensor: DeviceTensor, recording: Recording) -> bool:
    """Whether a recorded tensor is not one of an earlier step."""
    assert tensor.elem is not None
    return torch._from_functional_tensor(tensor.elem).recording is recording


def _readable(tensor: DeviceTensor, how: str) -> torch.Tensor:
    recording = _tracing()
    known = None if recording is None else _known(recording, tensor)
    if known is not None:
        return known
    if readers and (recording is not None or tensor.host is None):
        found = readers[-1](tensor)
        if found is not None:
            return found
    if recording is not None:
        assumed = _assumed(recording, tensor, how)
        if assumed is not None:
            return assumed
    if _tracing() is not None or tensor.host is None:
        raise _unreadable(how)
    return tensor.held()


def _known(recording: Recording, tensor: DeviceTensor) -> torch.Tensor | None:
    """The elements of a tensor that are the same in every step; None where steps differ."""
    if tensor.elem is None or not _is_of(tensor, recording):
        return None
    return recording.known(value_of(tensor))


def _assumed(recording: Recording, tensor: DeviceTensor, how: str) -> torch.Tensor | None:
    """The elements of a tensor that state decides which the step has not changed so far; else None."""
    if recording.checks.evaluating or recording.is_changing:
        return None
    if tensor.elem is None or not _is_of(tensor, recording):
        if tensor.host is None:
            return None
        recording.meet(tensor)
    return recording.assume(value_of(tensor), TensorReadError(how, user_line()))


@contextmanager
def state_changes() -> Iterator[None]:
    """Refuse to read state in a step, also state that the step has not changed so far: it is about to."""
    recording = _tracing()
    if recording is None:
        yield
        return
    before, recording.is_changing = recording.is_changing, True
    try:
        yield
    finally:
        recording.is_changing = before


def _unreadable(how: str) -> TensorReadError | ValueNotThereError:
    return (
        TensorReadError(how, user_line()) if _tracing() is not None else ValueNotThereError(how, user_line())
    )


def _on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation outside of a step on this CPU, with what the last step returned too.

    Raises:
        ValueNotThereError: An argument is of a step, and no loop returned it or the operation writes it.
        LostWriteError: The system has the elements that the operation writes.
    """
    written = {id(x) for x in _written(func, args)}

    def unwrap(x: Any) -> Any:
        if isinstance(x, DeviceTensor):
            output = None if id(x) in written else _output(x)
            return _readable(x, f"read by {func}") if output is None else output
        return torch.device("cpu") if x == DEVICE else x

    _refuse_lost_writes(func, args)
    host_args, host_kwargs = mapped(unwrap, (args, kwargs))
    if any(isinstance(x, torch.Tensor) and x.is_meta for x in leaves((host_args, host_kwargs))):
        host_args, host_kwargs = mapped(_without_elements, (host_args, host_kwargs))
    outs = mapped(_held, func(*host_args, **host_kwargs))
    if func.is_view and isinstance(args[0], DeviceTensor) and args[0].host is not None:
        for view in leaves(outs):
            view.owner = _OfBase(args[0])
    return return_and_correct_aliasing(func, args, kwargs, outs)


def _output(tensor: DeviceTensor) -> torch.Tensor | None:
    """Return what the last step of a running loop gave for a tensor, or what follows; None for others."""
    if tensor.host is not None:
        return tensor.host if tensor.host.is_meta else None
    found = (read(tensor) for read in reversed(output_readers))
    return next((x for x in found if x is not None), None)


def _without_elements(x: Any) -> Any:
    """Operations on outputs of a step that is only compiled have none: they give sizes and types."""
    if isinstance(x, torch.Tensor):
        return x.to(META)
    return META if isinstance(x, torch.device) else x


@dataclass(frozen=True)
class _OfBase:
    """Owns a view: its elements are those of the tensor that it is a view of, wherever these are."""

    base: DeviceTensor

    @property
    def ended(self) -> bool:
        """See `Owner`."""
        return self.base.owner is None or self.base.owner.ended

    def refresh(self, tensor: DeviceTensor) -> None:
        """See `Owner`."""
        self.base.held()


def _held(host: Any) -> Any:
    foreign = isinstance(host, torch.Tensor) and not isinstance(host, DeviceTensor)
    return DeviceTensor(host, host) if foreign else host


def _recorded(recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rule = rule_of(func)
    if rule is not None:
        with running_rule(func):
            return rule(*args, **kwargs)
    defined = OPDEFS.get(func._schema.name)
    if defined is not None and func._schema.name not in DECOMPOSED:
        # Its body may write into tensors that it makes, which only tensors of the device can.
        with _recorders[-1]:
            return defined._init_fn(*args, **kwargs)
    if func in _READS:
        tensors = mapped(lambda x: _readable(x, "read") if isinstance(x, DeviceTensor) else x, (args, kwargs))
        return func(*tensors[0], **tensors[1])
    foreign = [given for given in _written(func, args) if not isinstance(given, DeviceTensor)]
    if foreign and not any(given.numel() for given in foreign):
        return foreign[0]
    if foreign:
        # A tensor that the program made on this CPU is a constant of the step, and keeps its elements.
        raise TensorWriteError(str(func), user_line())
    strided = func is _aten.as_strided.default

    def unwrap(x: Any) -> Any:
        if isinstance(x, DeviceTensor):
            if x.elem is None or not _is_of(x, recording):
                recording.meet(x)
            # strides and offset count in the whole storage, and a view of a view has no such rule
            return x.base if strided else x.elem
        if isinstance(x, torch.Tensor):
            return torch._to_functional_tensor(recording.constant(x))
        return META if isinstance(x, torch.device) else x

    func, args = _declared(func, args)
    inner_args, inner_kwargs = mapped(unwrap, (args, kwargs))
    outs = mapped(_wrap, _functionalized(func, inner_args, inner_kwargs))
    made = [x for x in leaves(outs) if isinstance(x, DeviceTensor)]
    for loop in recording.loops:
        loop.see(_written(func, args), () if func.is_view else made)
    recording.made += map(ref, made)
    if func.is_view and isinstance(args[0], DeviceTensor):
        for view in made:
            view.base = args[0].base
    return return_and_correct_aliasing(func, args, kwargs, outs) if made else outs


def _declared(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A batch norm that says in its schema that it writes its running moments, for one that does not."""
    if func is not _aten.native_batch_norm.default:
        return func, args
    x, weight, bias, mean, variance, training, momentum, eps = args
    if not training:
        return _aten._native_batch_norm_legit_no_training.default, (
            x,
            weight,
            bias,
            mean,
            variance,
            momentum,
            eps,
        )
    if mean is None:
        return _aten._native_batch_norm_legit.no_stats, (x, weight, bias, True, momentum, eps)
    return _aten._native_batch_norm_legit.default, args


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
    if not isinstance(x, torch.Tensor) or not torch._is_functional_tensor(x):
        return x
    made = DeviceTensor(x)
    made.elem = made.base = x
    return made


def _refuse_lost_writes(func: Any, args: tuple[Any, ...]) -> None:
    """While the system has the elements of a tensor, only a step may write it."""
    for given in _written(func, args):
        if isinstance(given, DeviceTensor) and given.owner is not None and not given.owner.ended:
            raise LostWriteError(str(func), user_line())


def _written(func: Any, args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """Tensors that an operation writes into."""
    for argument, given in zip(func._schema.arguments, args, strict=False):
        info = argument.alias_info
        if info is not None and info.is_write and isinstance(given, torch.Tensor):
            yield given
