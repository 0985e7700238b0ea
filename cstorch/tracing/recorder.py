"""Records operations on device tensors in a step: PyTorch functions, then ATen operations.

Functions of selected rows are replaced first (`selections`, `masks`), then those that are decomposed
differently from PyTorch (`replacements`). All others reach the recording as ATen operations, through
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
    call_overridden,
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
from cstorch.tracing.replacements import COMPOSED, replaced_functions
from cstorch.tracing.selections import answer_has_rows, apply, name_of, rows_of, writes_in_place
from cstorch.tracing.values import META, Mode, Recorded, leaves, map_leaves

if TYPE_CHECKING:
    from cstorch.tracing.recording import Recording

log = logging.getLogger("cstorch")

_aten = torch.ops.aten
_HOST_READS = frozenset(
    {_aten._local_scalar_dense.default, _aten.equal.default, _aten.allclose.default},
)
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)

_GRADIENT_ACCESSORS = frozenset(
    {torch.Tensor.grad.__get__, torch.Tensor.grad.__set__, torch.Tensor.grad.__delete__}
)
_SCALAR_READS = frozenset({"__bool__", "__float__", "__format__", "__int__", "item"})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_ROW_SELECTORS = frozenset({*INDEXING, *PLACING, *SPLITTING, torch.where})

_SAME_DEVICE_FUNCTIONS = frozenset(
    {torch.stft, torch.istft, torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu}
)
"""Functions that refuse arguments of different devices before they call an operation."""

_SAME_DTYPE_NAMES = (
    "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm batch_norm bilinear bmm "
    "chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
    "conv_transpose3d dot einsum ger group_norm gru gru_cell inner instance_norm layer_norm "
    "linear lstm lstm_cell matmul mm multi_head_attention_forward mv outer prelu rms_norm "
    "rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention tensordot vdot"
)
_SAME_DTYPE_FUNCTIONS = frozenset(
    getattr(module, name)
    for module in (torch, torch.Tensor, functional, torch._C._nn)
    for name in _SAME_DTYPE_NAMES.split()
    if hasattr(module, name)
)
"""Functions that refuse 16-bit tensors together with float32 tensors, outside of an autocast."""

_HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})


@contextmanager
def tracing(recording: Recording) -> Iterator[None]:
    """Record everything that the body does with device tensors."""
    recorder = Recorder(recording)
    active = tracers()
    active.append(recorder)
    try:
        places = recording.places
        with (
            places.following_modules(),
            _following_autocast(places),
            replaced_functions(),
            appearing_compiled(),
            recorder,
        ):
            yield
    finally:
        active.pop()


def current_recording() -> Recording | None:
    """Return the recording of the step that is being traced, if one is."""
    active = tracers()
    tracer = active[-1] if active else None
    return tracer.recording if isinstance(tracer, Recorder) else None


@contextmanager
def refusing_state_reads() -> Iterator[None]:
    """Refuse to read state in the body, even state not yet changed: the program is about to change it."""
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
    """The tracer of a step: it sees every operation, including those that make tensors on the device."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        self._own_storages: set[int] = set()  # of the tensors that the step has made on the host

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
        if keywords.get("device") in (DEVICE, META):  # composite operations see META
            return self._make(func, args, keywords)
        if torch.Tag.nondeterministic_seeded in func.tags:
            # Random numbers for the host are drawn on the device instead: every step draws new ones.
            if any(isinstance(x, torch.Tensor | torch.Generator) for x in leaves((args, keywords))):
                raise RandomOutsideError(str(func), user_line())
            return self._make(func, args, keywords)
        result = func(*args, **keywords)
        self._check_host_write(func, args, result)
        return result

    # Reading

    def static_value(self, tensor: DeviceTensor) -> torch.Tensor | None:
        """Return the elements of a tensor if they are the same in every step."""
        return self.recording.static_value(value_of(tensor)) if self._is_recorded(tensor) else None

    def value_if_unchanged(self, tensor: DeviceTensor, how: str) -> torch.Tensor | None:
        """Return the elements of a tensor if they depend only on state that the step has not changed."""
        recording = self.recording
        if recording.checks.evaluating or recording.is_changing:
            return None
        if not self._is_recorded(tensor):
            if tensor.host is None:
                return None
            recording.add_unnamed_state(tensor)
        return recording.value_if_unchanged(value_of(tensor), TensorReadError(how, user_line()))

    def answer(self, method: str, tensor: DeviceTensor) -> Any:
        """Answer a method that reads a tensor whose value is not known; NotImplemented to refuse."""
        if method in _SCALAR_READS:
            return self.recording.checks.answer(method, tensor)
        return sizes_of(tensor) if method == "tolist" else NotImplemented

    def add_check(self, truth: Any, error: str) -> None:
        """Record a condition that must hold in every step."""
        self.recording.checks.keep(truth, error)

    def _is_recorded(self, tensor: DeviceTensor) -> bool:
        """Return True if a tensor has a value in this recording, not one of an earlier step."""
        if tensor.elem is None:
            return False
        return torch._from_functional_tensor(tensor.elem).recording is self.recording

    # PyTorch functions

    def call_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a PyTorch function that is given a device tensor."""
        if self.recording.selects or func in _ROW_SELECTORS:
            result = self._call_with_selections(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return self._call_with_whole(func, args, kwargs)

    def _call_with_selections(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that makes or is given a selection of rows; NotImplemented for all others."""

        def static_mask(mask: torch.Tensor) -> torch.Tensor | None:
            return self.static_value(mask) if isinstance(mask, DeviceTensor) else mask

        def value_key(mask: torch.Tensor) -> Any:
            if not isinstance(mask, DeviceTensor):
                return id(mask)
            if not self._is_recorded(mask):
                self.recording.add_unnamed_state(mask)
            return self.recording.key(value_of(mask).value)

        def plain(*args: Any, **kwargs: Any) -> Any:
            return self._call_with_whole(func, args, kwargs)

        plain.__name__ = name = name_of(func)
        result: Any = NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            if func in INDEXING:
                if not is_by_values(args):
                    return NotImplemented
                result = index_by_values(plain, args, static_mask, value_key)
            elif func in PLACING or (func is torch.where and len(args) + len(kwargs) == 1):
                result = find_places(func.__name__, args, kwargs, static_mask, value_key)
            elif func in SPLITTING and not any(rows_of(x) is not None for x in leaves((args, kwargs))):
                result = parts_of(args, kwargs, value_key)
            elif (
                name == "unbind"
                and args[1:] in ((), (0,))
                and (rows := rows_of(args[0])) is not None
                and not rows.inner
            ):
                result = UnrolledLoop(args[0], rows.mask, self.recording)
            elif any(rows_of(x) is not None for x in leaves((args, kwargs))):
                result = apply(plain, name, args, kwargs, in_place=writes_in_place(func.__name__))
            else:
                result = answer_has_rows(name, args)
        self.recording.selects |= any(rows_of(x) is not None for x in leaves(result))
        return result

    def _call_with_whole(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of tensors without row selections."""
        recording = self.recording
        if func in _GRADIENT_ACCESSORS and not recording.roots:
            recording.sees_gradients = True
        if func is torch.Tensor.backward:
            recording.roots.append(args[0])
            recording.num_forward_nodes = recording.num_forward_nodes or len(recording.graph.nodes)
        return call_overridden(func, args, kwargs, self._call_rewritten)

    def _call_rewritten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function, or its replacement in steps, with the arguments that it needs in a step."""
        recording = self.recording
        if func in INDEXING and (rewritten := self._index_by_scalars(args[0], args[1])) is not None:
            result = call_below(func, (*rewritten, *args[2:]), kwargs)
            return result if result is None else result.squeeze(0)
        if func in INDEXING and recording.loops:
            args = (args[0], self._index_in_loop(args[0], args[1]), *args[2:])
        if func in _SAME_DEVICE_FUNCTIONS:
            args, kwargs = map_leaves(_copy_to_device, (args, kwargs))
        if func in _SAME_DTYPE_FUNCTIONS and recording.places.computes_half(is_mixed()):
            args, kwargs = _widen_mixed(args, kwargs)
        if func in COMPOSED:
            return COMPOSED[func](*args, **kwargs)
        return call_below(func, args, kwargs)

    def _index_in_loop(self, x: torch.Tensor, index: Any) -> Any:
        """Return the index of an unrolled loop's body, 0 if it is outside of the first dimension."""
        if not isinstance(index, DeviceTensor) or index.dim() or index.dtype not in _INTEGERS or not x.dim():
            return index
        known = self.static_value(index)
        return index if known is None else self.recording.loops[-1].inside(int(known), x.size(0))

    def _index_by_scalars(
        self, x: torch.Tensor, index: Any
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
        """Rewrite 0-d integer tensors in an index, as `i` in `x[:, i]`, as index tensors of one element.

        Returns:
            A view of the tensor whose first dimensions are those that such tensors index, and the index
            tensors; None for other indices.
        """
        # PyTorch would call item() on the tensors, and only a step knows their values.
        elements = index if isinstance(index, tuple) else (index,)

        def is_scalar(element: Any) -> bool:
            is_integer = (
                isinstance(element, DeviceTensor) and not element.dim() and element.dtype in _INTEGERS
            )
            return is_integer and self.static_value(element) is None

        scalars = [element for element in elements if is_scalar(element)]
        others = [element for element in elements if not is_scalar(element)]
        if not scalars or any(isinstance(element, torch.Tensor | bool) for element in others):
            return None
        num_indexed = sum(element is not None and element is not Ellipsis for element in elements)
        dimensions, dimension = [], 0
        for element in elements:
            if is_scalar(element):
                dimensions.append(dimension)
            if element is Ellipsis:
                dimension += x.dim() - num_indexed
            elif not isinstance(element, int):
                dimension += 1
        other_indices = tuple(slice(None) if is_scalar(element) else element for element in elements)
        with torch._C.DisableTorchFunctionSubclass():
            view = x[other_indices].movedim(dimensions, list(range(len(dimensions))))
            return view, tuple(scalar.reshape(1) for scalar in scalars)

    # ATen operations

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an ATen operation.

        Raises:
            TensorWriteError: it writes to a CPU tensor.
        """
        rule = rule_of(func)
        if rule is not None:
            with running_rule(func):
                return rule(*args, **kwargs)
        defined = OPDEFS.get(func._schema.name)
        if defined is not None and func._schema.name not in DECOMPOSED:
            # Its body may write into tensors that it makes. In this mode those are device tensors, and only
            # device tensors record writes.
            with self:
                return defined._init_fn(*args, **kwargs)
        if func in _HOST_READS:
            tensors = map_leaves(
                lambda x: readable(x, "read") if isinstance(x, DeviceTensor) else x, (args, kwargs)
            )
            return func(*tensors[0], **tensors[1])
        host_targets = [x for x in tensors_written(func, args) if not isinstance(x, DeviceTensor)]
        if host_targets and not any(target.numel() for target in host_targets):
            return host_targets[0]  # empty tensors: nothing is written
        if host_targets:
            # A tensor that the program made on the host is a constant of the step, and keeps its elements.
            raise TensorWriteError(str(func), user_line())
        return self._functionalize(*_declare_writes(func, args), kwargs)

    def _functionalize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation on functional wrappers, and wrap its results."""
        recording = self.recording
        is_strided = func is _aten.as_strided.default

        def unwrap(x: Any) -> Any:
            if isinstance(x, DeviceTensor):
                if not self._is_recorded(x):
                    recording.add_unnamed_state(x)
                # as_strided addresses the whole storage, so apply it to the base, not to a view.
                return x.base if is_strided else x.elem
            if isinstance(x, torch.Tensor):
                return torch._to_functional_tensor(recording.constant(x))
            return META if isinstance(x, torch.device) else x

        inner_args, inner_kwargs = map_leaves(unwrap, (args, kwargs))
        outs = map_leaves(_wrap, _call_functionalized(func, inner_args, inner_kwargs))
        made = [x for x in leaves(outs) if isinstance(x, DeviceTensor)]
        for loop in recording.loops:
            loop.observe(tensors_written(func, args), () if func.is_view else made)
        recording.live += map(ref, made)
        if func.is_view and isinstance(args[0], DeviceTensor):
            for view in made:
                view.base = args[0].base
        return return_and_correct_aliasing(func, args, kwargs, outs) if made else outs

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation that makes a tensor on the device."""
        if func is _aten._to_copy.default:
            return lift(self.recording.constant(args[0].to(kwargs.get("dtype") or args[0].dtype)))
        result = self.recording.call(func, args, {**kwargs, "device": META})
        return map_leaves(lambda x: lift(x) if isinstance(x, Recorded) else x, result)

    def _check_host_write(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Warn about a write to a CPU tensor that is older than the step: later steps do not repeat it."""
        read = _storages(args)
        made = _storages(result) if func is _aten.lift_fresh.default else _storages(result) - read
        self._own_storages |= made
        if not _storages(list(tensors_written(func, args))) <= self._own_storages:
            _warn_about_host_write(str(func), user_line() or "line unknown")


def _copy_to_device(x: Any) -> Any:
    """Copy a window (of stft) or an initial RNN state from the host to the device."""
    # Integers are the batch sizes of packed sequences, which PyTorch reads on the host. The recorder turns a
    # copy to META into a device tensor.
    is_copied = isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.is_floating_point()
    return x.to(META) if is_copied else x


def _widen_mixed(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Cast 16-bit tensors to float32 if other arguments are float32."""
    # Under an autocast PyTorch would cast the float32 arguments to 16 bits instead. In a step the compiler
    # does that, and the recording keeps the types of the parameters. A 16-bit tensor that is widened here and
    # narrowed by the compiler keeps its elements.
    types = {x.dtype for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
    if torch.float32 not in types or not types & _HALF_DTYPES:
        return args, kwargs

    def widen(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in _HALF_DTYPES else leaf

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


@cache  # warn once for each line and operation
def _warn_about_host_write(operation: str, line: str) -> None:
    log.warning(
        "%s: %s writes to a CPU tensor while the step is recorded; later steps will not repeat the write; "
        "make it a buffer of the compiled model, or write outside of the step",
        line,
        operation,
    )
