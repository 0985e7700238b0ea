"""Records operations on tensors of the device in a step: functions of PyTorch, then ATen operations.

Functions of selected rows are replaced first (`selections`, `masks`), then those that are composed otherwise
than by PyTorch (`replacements`). All others reach the recording as ATen operations, through
functionalization. Importing this module loads no compiler.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch._library.custom_ops import OPDEFS
from torch.nn import functional
from torch.utils._python_dispatch import return_and_correct_aliasing

from cstorch.errors import RandomOutsideError, TensorReadError, TensorWriteError
from cstorch.tracing.device import (
    DEVICE,
    INDEXING,
    DeviceTensor,
    call_below,
    call_function,
    lift,
    readable,
    tensors_written,
    tracers,
    value_of,
)
from cstorch.tracing.dynamo import appearing_compiled
from cstorch.tracing.loops import UnrolledLoop
from cstorch.tracing.masks import (
    PLACING,
    SPLITTING,
    find_places,
    index_by_values,
    is_by_values,
    parts_of,
    sizes_of,
)
from cstorch.tracing.operations import DECOMPOSED, rule_of, running_rule
from cstorch.tracing.places import Places, user_line
from cstorch.tracing.precision import format_of, is_mixed
from cstorch.tracing.replacements import COMPOSED, composing
from cstorch.tracing.selections import apply, compare_count, name_of, rows_of, writes_in_place
from cstorch.tracing.values import META, Mode, Recorded, leaves, map_leaves

if TYPE_CHECKING:
    from cstorch.tracing.recording import Recording

log = logging.getLogger("cstorch")

_aten = torch.ops.aten
_READS = frozenset(
    {_aten._local_scalar_dense.default, _aten.equal.default, _aten.allclose.default},
)
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)

_GRADIENT = frozenset({torch.Tensor.grad.__get__, torch.Tensor.grad.__set__, torch.Tensor.grad.__delete__})
_CHECKING = frozenset({"__bool__", "__float__", "__format__", "__int__", "item"})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_SELECTING = frozenset({*INDEXING, *PLACING, *SPLITTING, torch.where})

_OF_ONE_DEVICE = frozenset(
    {torch.stft, torch.istft, torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu}
)
"""Functions that compare the devices of their arguments before they call an operation."""

_NAMES_OF_ONE_TYPE = (
    "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm batch_norm bilinear bmm "
    "chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
    "conv_transpose3d dot einsum ger group_norm gru gru_cell inner instance_norm layer_norm "
    "linear lstm lstm_cell matmul mm multi_head_attention_forward mv outer prelu rms_norm "
    "rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention tensordot vdot"
)
_OF_ONE_TYPE = frozenset(
    getattr(module, name)
    for module in (torch, torch.Tensor, functional, torch._C._nn)
    for name in _NAMES_OF_ONE_TYPE.split()
    if hasattr(module, name)
)
"""Functions that refuse tensors of 16 bits together with those of float32, outside of an autocast."""

_HALVES = frozenset({torch.float16, torch.bfloat16})


@contextmanager
def tracing(recording: Recording) -> Iterator[None]:
    """Record everything that the body does with tensors of the device."""
    recorder = Recorder(recording)
    active = tracers()
    active.append(recorder)
    try:
        places = recording.places
        with places.following(), _following_autocast(places), composing(), appearing_compiled(), recorder:
            yield
    finally:
        active.pop()


def current_recording() -> Recording | None:
    """Return the recording of the step that is being traced, if one is."""
    active = tracers()
    tracer = active[-1] if active else None
    return tracer.recording if isinstance(tracer, Recorder) else None


@contextmanager
def state_changes() -> Iterator[None]:
    """Refuse to read state in the body, also state that the step has not changed yet: it is about to."""
    recording = current_recording()
    if recording is None:
        yield
        return
    before, recording.is_changing = recording.is_changing, True
    try:
        yield
    finally:
        recording.is_changing = before


@contextmanager
def _following_autocast(places: Places) -> Iterator[None]:
    """Record where a step enters and leaves `torch.autocast`, of any device, instead of casting.

    The compiler computes those parts in 16 bits.
    """

    def enter(context: Any) -> Any:
        places.enter_half(format_of(context.fast_dtype) if context._enabled else None)
        return context

    def leave(context: Any, *error: object) -> None:
        places.leave_half()

    kind: Any = torch.autocast
    originals = kind.__enter__, kind.__exit__
    kind.__enter__, kind.__exit__ = enter, leave
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = originals


class Recorder(Mode):
    """The tracer of a step: it sees every operation, also those that make tensors on the device."""

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
            return self.record(func, args, keywords)
        if keywords.get("device") in (DEVICE, META):  # operations that are made of others see META
            return self._make(func, args, keywords)
        if torch.Tag.nondeterministic_seeded in func.tags:
            # Random numbers of this CPU are drawn on the device instead: every step draws others.
            if any(isinstance(x, torch.Tensor | torch.Generator) for x in leaves((args, keywords))):
                raise RandomOutsideError(str(func), user_line())
            return self._make(func, args, keywords)
        found = func(*args, **keywords)
        self._check_host_write(func, args, found)
        return found

    # Reading

    def static_value(self, tensor: DeviceTensor) -> torch.Tensor | None:
        """Return the elements of a tensor if they are the same in every step."""
        return self.recording.static_value(value_of(tensor)) if self._is_recorded(tensor) else None

    def assume(self, tensor: DeviceTensor, how: str) -> torch.Tensor | None:
        """Return the elements of a tensor if they depend only on state that the step has not changed."""
        recording = self.recording
        if recording.checks.evaluating or recording.is_changing:
            return None
        if not self._is_recorded(tensor):
            if tensor.host is None:
                return None
            recording.add_unnamed(tensor)
        return recording.assume(value_of(tensor), TensorReadError(how, user_line()))

    def answer(self, method: str, tensor: DeviceTensor) -> Any:
        """Answer a method that reads a tensor whose value is not known; NotImplemented to refuse."""
        if method in _CHECKING:
            return self.recording.checks.answer(method, tensor)
        return sizes_of(tensor) if method == "tolist" else NotImplemented

    def check(self, truth: Any, error: str) -> None:
        """Keep a condition that must hold in every step."""
        self.recording.checks.keep(truth, error)

    def _is_recorded(self, tensor: DeviceTensor) -> bool:
        """Return True if a tensor has a value in this recording, not one of an earlier step."""
        if tensor.elem is None:
            return False
        return torch._from_functional_tensor(tensor.elem).recording is self.recording

    # Functions of PyTorch

    def call_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of PyTorch that has got a tensor of the device."""
        if self.recording.selects or func in _SELECTING:
            found = self._call_with_selections(func, args, kwargs)
            if found is not NotImplemented:
                return found
        return self._call_with_whole(func, args, kwargs)

    def _call_with_selections(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that makes a selection of rows, or gets one; NotImplemented for all others."""

        def read(mask: torch.Tensor) -> torch.Tensor | None:
            return self.static_value(mask) if isinstance(mask, DeviceTensor) else mask

        def key(mask: torch.Tensor) -> Any:
            if not isinstance(mask, DeviceTensor):
                return id(mask)
            if not self._is_recorded(mask):
                self.recording.add_unnamed(mask)
            return self.recording.key(value_of(mask).value)

        def plain(*args: Any, **kwargs: Any) -> Any:
            return self._call_with_whole(func, args, kwargs)

        plain.__name__ = name = name_of(func)
        found: Any = NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            if func in INDEXING:
                if not is_by_values(args):
                    return NotImplemented
                found = index_by_values(plain, args, read, key)
            elif func in PLACING or (func is torch.where and len(args) + len(kwargs) == 1):
                found = find_places(func.__name__, args, kwargs, read, key)
            elif func in SPLITTING and not any(rows_of(x) is not None for x in leaves((args, kwargs))):
                found = parts_of(args, kwargs, key)
            elif (
                name == "unbind"
                and args[1:] in ((), (0,))
                and (rows := rows_of(args[0])) is not None
                and not rows.inner
            ):
                found = UnrolledLoop(args[0], rows.mask, self.recording)
            elif any(rows_of(x) is not None for x in leaves((args, kwargs))):
                found = apply(plain, name, args, kwargs, in_place=writes_in_place(func.__name__))
            else:
                found = compare_count(name, args)
        self.recording.selects |= any(rows_of(x) is not None for x in leaves(found))
        return found

    def _call_with_whole(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of tensors all of whose rows count."""
        recording = self.recording
        if func in _GRADIENT and not recording.roots:
            recording.sees_gradients = True
        if func is torch.Tensor.backward:
            recording.roots.append(args[0])
            recording.forward_nodes = recording.forward_nodes or len(recording.graph.nodes)
        return call_function(func, args, kwargs, self._call_below)

    def _call_below(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recording = self.recording
        if func in INDEXING and (found := self._index_by_values(args[0], args[1])) is not None:
            rows = call_below(func, (*found, *args[2:]), kwargs)
            return rows if rows is None else rows.squeeze(0)
        if func in INDEXING and recording.loops:
            args = (args[0], self._index_in_loop(args[0], args[1]), *args[2:])
        if func in _OF_ONE_DEVICE:
            args, kwargs = map_leaves(_copy_to_device, (args, kwargs))
        if func in _OF_ONE_TYPE and recording.places.computes_half(is_mixed()):
            args, kwargs = _widen_mixed(args, kwargs)
        if func in COMPOSED:
            return COMPOSED[func](*args, **kwargs)
        return call_below(func, args, kwargs)

    def _index_in_loop(self, x: torch.Tensor, index: Any) -> Any:
        """Return the index of an unrolled loop's body, moved into the first dimension if it is out of it."""
        if not isinstance(index, DeviceTensor) or index.dim() or index.dtype not in _INTEGERS or not x.dim():
            return index
        known = self.static_value(index)
        return index if known is None else self.recording.loops[-1].inside(int(known), x.size(0))

    def _index_by_values(
        self, x: torch.Tensor, index: Any
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
        """Rewrite an index with numbers that only a step knows, as in `x[:, i]`, with lists of one number.

        Returns:
            A view of the tensor whose first dimensions have such numbers, and those; None for other indices.
        """
        # PyTorch reads the value of a number in an index, which a recorded step does not have.
        elements = index if isinstance(index, tuple) else (index,)

        def is_number(element: Any) -> bool:
            is_integer = (
                isinstance(element, DeviceTensor) and not element.dim() and element.dtype in _INTEGERS
            )
            return is_integer and self.static_value(element) is None

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

    # ATen operations

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an ATen operation.

        Raises:
            TensorWriteError: it writes into a tensor of this CPU.
        """
        rule = rule_of(func)
        if rule is not None:
            with running_rule(func):
                return rule(*args, **kwargs)
        defined = OPDEFS.get(func._schema.name)
        if defined is not None and func._schema.name not in DECOMPOSED:
            # Its body may write into tensors that it makes, which only tensors of the device can.
            with self:
                return defined._init_fn(*args, **kwargs)
        if func in _READS:
            tensors = map_leaves(
                lambda x: readable(x, "read") if isinstance(x, DeviceTensor) else x, (args, kwargs)
            )
            return func(*tensors[0], **tensors[1])
        foreign = [given for given in tensors_written(func, args) if not isinstance(given, DeviceTensor)]
        if foreign and not any(given.numel() for given in foreign):
            return foreign[0]
        if foreign:
            # A tensor that the program made on this CPU is a constant of the step, and keeps its elements.
            raise TensorWriteError(str(func), user_line())
        return self._functionalize(*_declare_writes(func, args), kwargs)

    def _functionalize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation on functional wrappers, and wrap its results."""
        recording = self.recording
        is_strided = func is _aten.as_strided.default

        def unwrap(x: Any) -> Any:
            if isinstance(x, DeviceTensor):
                if not self._is_recorded(x):
                    recording.add_unnamed(x)
                # Strides and offset count in the whole storage, and a view of a view has no such rule.
                return x.base if is_strided else x.elem
            if isinstance(x, torch.Tensor):
                return torch._to_functional_tensor(recording.constant(x))
            return META if isinstance(x, torch.device) else x

        inner_args, inner_kwargs = map_leaves(unwrap, (args, kwargs))
        outs = map_leaves(_wrap, _call_functionalized(func, inner_args, inner_kwargs))
        made = [x for x in leaves(outs) if isinstance(x, DeviceTensor)]
        for loop in recording.loops:
            loop.see(tensors_written(func, args), () if func.is_view else made)
        recording.live += map(ref, made)
        if func.is_view and isinstance(args[0], DeviceTensor):
            for view in made:
                view.base = args[0].base
        return return_and_correct_aliasing(func, args, kwargs, outs) if made else outs

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation that makes a tensor on the device."""
        if func is _aten._to_copy.default:
            return lift(self.recording.constant(args[0].to(kwargs.get("dtype") or args[0].dtype)))
        found = self.recording.call(func, args, {**kwargs, "device": META})
        return map_leaves(lambda x: lift(x) if isinstance(x, Recorded) else x, found)

    def _check_host_write(self, func: Any, args: tuple[Any, ...], found: Any) -> None:
        """Warn of a write into a tensor that this CPU had before the step: later steps do not repeat it."""
        read = _storages(args)
        made = _storages(found) if func is _aten.lift_fresh.default else _storages(found) - read
        self._own_storages |= made
        if not _storages(list(tensors_written(func, args))) <= self._own_storages:
            _warn_of_host_write(str(func), user_line() or "line unknown")


def _copy_to_device(x: Any) -> Any:
    """Copy a window or a first state of this CPU to the device; sizes of packed sequences stay here."""
    is_copied = isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.is_floating_point()
    return x.to(META) if is_copied else x


def _widen_mixed(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Cast tensors of 16 bits to float32 if other arguments have it."""
    # An autocast would narrow the others. In a step the compiler does so, and the types of the recording stay
    # those of the parameters: the cast back changes no element.
    types = {x.dtype for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
    if torch.float32 not in types or not types & _HALVES:
        return args, kwargs

    def widen(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in _HALVES else leaf

    return map_leaves(widen, args), map_leaves(widen, kwargs)


def _declare_writes(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Replace a batch norm by one whose schema says that it writes its running moments."""
    if func is not _aten.native_batch_norm.default:
        return func, args
    x, weight, bias, mean, variance, training, momentum, eps = args
    if not training:
        inference = x, weight, bias, mean, variance, momentum, eps
        return _aten._native_batch_norm_legit_no_training.default, inference
    if mean is None:
        return _aten._native_batch_norm_legit.no_stats, (x, weight, bias, True, momentum, eps)
    return _aten._native_batch_norm_legit.default, args


def _call_functionalized(func: Any, args: Any, kwargs: Any) -> Any:
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


def _storages(nest: Any) -> set[int]:
    tensors = (x for x in leaves(nest) if isinstance(x, torch.Tensor) and x.layout is torch.strided)
    return {x.untyped_storage()._cdata for x in tensors}


@cache
def _warn_of_host_write(operation: str, line: str) -> None:
    log.warning(
        "%s: %s writes into a tensor of this CPU when the step is recorded, and not again in later steps; "
        "make it a buffer of the compiled model, or write outside of the step",
        line,
        operation,
    )
