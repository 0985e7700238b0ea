"""The recording of a step: operations on its values become nodes of a graph.

This is the inner half of a lazy tensor: PyTorch's functionalization calls operations without side effects on
recorded values, and each call becomes a node. Shapes and element types come from PyTorch's meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import FrameType
from typing import Any, NoReturn, Protocol, cast
from weakref import ref

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from cgc.importers.aten import (
    SUPPORTED,
    SUPPORTED_COMPLEX,
    Check,
    Constant,
    Graph,
    Node,
    Tensor,
    recording_error,
)
from cs_runtime.exits import first_line
from cs_toolkit.errors import ToolkitError
from cstorch.errors import TensorReadError, ValueUnavailableError
from cstorch.tracing.checks import Checks, Guarded
from cstorch.tracing.constant_folding import fold_float64, operator, sources, static_value
from cstorch.tracing.device import DeviceTensor, lift, set_value, value_of
from cstorch.tracing.operations import DECOMPOSED
from cstorch.tracing.places import Places, user_line
from cstorch.tracing.values import META, Mode, Recorded, dtype_name, leaves, map_leaves, to_array

_SAME_VALUE = frozenset(
    {
        torch.ops.aten.detach.default,
        torch.ops.aten.alias.default,
        torch.ops.aten.lift_fresh.default,
        torch.ops.aten.lift.default,
    }
)
_STRIDED = frozenset({torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default})
_SAME_ORDER = frozenset(
    {
        torch.ops.aten.clone.default,
        torch.ops.aten.squeeze.dim,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.view.default,
    }
)
"""Operations whose results have the elements of their argument in the same order."""
_SIZES = frozenset(
    {
        torch.ops.aten.sym_size.default,
        torch.ops.aten.sym_stride.default,
        torch.ops.aten.sym_storage_offset.default,
        torch.ops.aten.sym_numel.default,
        torch.ops.aten.is_contiguous.default,
    }
)


_UNCOMPOSED = "torch._refs.special"
"""Module whose decompositions name primitive operations that no program has written."""
_OF_EACH = "aten::_foreach_"


def _ctc_loss_shapes(log_probs: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    steps, count, _classes = log_probs.shape
    # The size of the alignments depends on values, and no rule reads them: one element stands for them.
    return log_probs.new_empty(count), log_probs.new_empty(count, steps, 1)


def _like_second(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(log_probs)


_SHAPES: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._ctc_loss.default: _ctc_loss_shapes,
    torch.ops.aten._ctc_loss.Tensor: _ctc_loss_shapes,
    torch.ops.aten._ctc_loss_backward.default: _like_second,
    torch.ops.aten._ctc_loss_backward.Tensor: _like_second,
}
"""Shape functions of operations for which PyTorch has none on the meta device."""


class Loop(Protocol):
    """A loop over the places of a mask whose body is being recorded (`loops.UnrolledLoop`)."""

    def inside(self, place: int, size: int) -> int:
        """Return an index of the body that is within a dimension of a size."""
        ...

    def observe(self, written: Iterable[Any], made: Iterable[Any]) -> None:
        """Observe an operation of the body: the tensors that it writes into, and those that it makes."""
        ...


@dataclass
class Recording:
    """Writes a graph while a step runs.

    Attributes:
        graph: the operations recorded so far.
        places: origin of the operation that runs.
        unnamed: tensors of the device that are not named as state; they begin with their present elements.
        initial_values: the values that these begin with, by the id of the tensor.
        numbers: entries of Python dicts that the step depends on, with their values.
        roots: tensors of the device whose gradients were computed.
        sees_gradients: True if the program looks at gradients before it computes them, as zero_grad does.
        shapes: operation, arguments and results on the meta device, of every node.
        earlier: those of an earlier recording of the same step, which are not computed again.
        live: weak references to the tensors of the device that have a value.
        checks: answers the program's checks of values that only a step knows.
        selects: True if there are selections of rows by masks of values.
        loops: loops over places of masks whose bodies are being recorded.
        bodies: the nodes of each iteration of such a loop, and a bool tensor: True if it counts.
        num_forward_nodes: number of nodes when the first gradients were computed.
        initial_tensors: the tensors of the device that are state, or among `unnamed`, by the number of the
            value that they begin with.
        assumed: those whose elements the program has read, by number, with the error to raise if the step
            turns out to change them.
        variable: ids of tensors among `unnamed` that are state even if the step only reads them.
        is_changing: True if state cannot be assumed any more, because the program is about to change it.
    """

    graph: Graph = field(default_factory=Graph)
    places: Places = field(default_factory=Places)
    unnamed: list[DeviceTensor] = field(default_factory=list)
    initial_values: dict[int, Tensor] = field(default_factory=dict)
    numbers: list[tuple[dict[str, Any], str, float]] = field(default_factory=list)
    roots: list[DeviceTensor] = field(default_factory=list)
    sees_gradients: bool = False
    shapes: list[tuple[Any, dict[str, Any], Any]] = field(default_factory=list)
    earlier: Sequence[tuple[Any, dict[str, Any], Any]] = ()
    live: list[ref[DeviceTensor]] = field(default_factory=list)
    checks: Checks = field(init=False)
    selects: bool = False
    loops: list[Loop] = field(default_factory=list)
    bodies: list[tuple[range, torch.Tensor]] = field(default_factory=list)
    num_forward_nodes: int = 0
    initial_tensors: dict[int, DeviceTensor] = field(default_factory=dict)
    assumed: dict[int, TensorReadError] = field(default_factory=dict)
    variable: set[int] = field(default_factory=set)
    is_changing: bool = False
    _guarded: list[tuple[Guarded, FrameType, int, torch.Tensor]] = field(default_factory=list)
    _keys: dict[int, Any] = field(default_factory=dict)
    _keyed: int = 0
    _count: int = 0
    _of_tensor: dict[tuple[int, int], tuple[torch.Tensor, Recorded]] = field(default_factory=dict)
    _composed: list[Any] = field(default_factory=list)
    _known_shapes: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checks = Checks(self._check, self._guard)

    def _check(self, truth: torch.Tensor, error: str) -> None:
        """Keep a condition of the program that must hold in every step."""
        value = value_of(cast(DeviceTensor, truth)).value
        self.graph.checks.append(Check(value, f"{user_line() or 'line unknown'}: {error}"))

    def _guard(self, guarded: Guarded, frame: FrameType, counts: torch.Tensor) -> None:
        """Track statements that run although a selection may be empty, up to their end."""
        self._guarded.append((guarded, frame, len(self.graph.nodes), counts))

    def end_guarded(self, whole: bool = False) -> None:
        """Keep the nodes of guarded statements that the program has left; at the end of the step, of all."""
        inside = []
        for guarded, frame, begin, counts in self._guarded:
            # A frame that has returned has no other one below it.
            runs = frame.f_back is not None and guarded.first <= frame.f_lineno <= guarded.last
            if runs and not whole:
                inside.append((guarded, frame, begin, counts))
            else:
                self.bodies.append((range(begin, len(self.graph.nodes)), counts))
        self._guarded = inside

    def new(self, like: torch.Tensor) -> Recorded:
        """Make a value with the sizes and the element type of a tensor."""
        self._count += 1
        meta = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=META)
        value = Tensor(self._count, tuple(like.shape), dtype_name(like.dtype))
        return Recorded(meta, value, self)

    def new_result(self, like: torch.Tensor) -> Recorded:
        """Make the value of an operation's result; int32 stands for int16, which the device lacks."""
        made = self.new(like)
        if like.dtype == torch.int16:
            made.value = replace(made.value, dtype="int32")
        return made

    def constant(self, tensor: torch.Tensor) -> Recorded:
        """Record a tensor of this CPU as a constant with its present elements."""
        # PyTorch increments the version of a tensor at each in-place write.
        key = id(tensor), tensor._version
        kept = self._of_tensor.get(key)
        if kept is not None:
            return kept[1]
        if tensor.layout is not torch.strided:  # the adjacency of a graph
            return self.constant(tensor.to_dense())
        # A complex number of Python arrives as a complex128 scalar, and determines no element type.
        narrow = tensor.to(torch.complex64) if tensor.is_complex() and not tensor.dim() else tensor
        made = self.new_result(narrow)
        wide = narrow.int() if narrow.dtype == torch.int16 else narrow
        self.graph.constants[made.value.id] = Constant(made.value, to_array(wide))
        self._of_tensor[key] = tensor, made
        return made

    def input(self, tensor: torch.Tensor) -> Recorded:
        """Add a tensor of the batch."""
        made = self.new(torch.empty(tensor.shape, dtype=tensor.dtype, device=META))
        self.graph.inputs.append(made.value)
        return made

    def add_unnamed_state(self, tensor: DeviceTensor) -> None:
        """Add a tensor of the device that is not named as state: it begins with its present elements."""
        if tensor.host is None:
            raise ValueUnavailableError("used", user_line())
        value = self.new(tensor)
        self.initial_tensors[value.value.id] = tensor
        self.graph.constants[value.value.id] = Constant(value.value, to_array(tensor.host))
        self.initial_values[id(tensor)] = value.value
        set_value(tensor, value)
        self.unnamed.append(tensor)

    def initial_elements(self, tensor: DeviceTensor, number: int | None) -> DeviceTensor | None:
        """Return the elements with which a tensor begins the step; None if the step has not changed it.

        Args:
            tensor: a tensor of the state.
            number: number of its initial value, if it has one.
        """
        if number is None or value_of(tensor).value.id == number:
            return None
        now = value_of(tensor)
        return lift(Recorded(now.meta, replace(now.value, id=number), self))

    def static_value(self, value: Recorded) -> torch.Tensor | None:
        """Return the elements of a value that are the same in every step; None if steps differ."""
        return static_value(self.graph, value.value, self._constant_elements())

    def compute_float64(self) -> None:
        """Replace operations in float64 by constants; `constant_folding.fold_float64` says which."""
        for value, elements in fold_float64(self.graph, self._constant_elements()):
            self.graph.constants[value.id] = Constant(value, to_array(elements))

    def value_if_unchanged(self, value: Recorded, otherwise: TensorReadError) -> torch.Tensor | None:
        """Return the elements of a value that depends only on constants and state; None for others.

        A step that reads state is recorded for its present elements, and again when the program changes them.

        Args:
            value: a value of this recording.
            otherwise: raised in the end if the step changes that state.
        """
        read = sources(self.graph, value.value)
        begins = {number: self.initial_tensors[number] for number in read & self.initial_tensors.keys()}
        given = {number: tensor.to_host().detach() for number, tensor in begins.items()}
        found = static_value(self.graph, value.value, {**self._constant_elements(), **given})
        if found is not None:
            self.assumed = {**dict.fromkeys(begins, otherwise), **self.assumed}
        return found

    def _constant_elements(self) -> dict[int, torch.Tensor]:
        return {made.value.id: tensor.detach() for tensor, made in self._of_tensor.values()}

    def key(self, value: Tensor) -> Any:
        """Return a key that is equal for values computed by the same operations from the same values."""
        for node in self.graph.nodes[self._keyed :]:
            if torch.Tag.nondeterministic_seeded in operator(node).tags:
                continue
            if operator(node) in _SAME_ORDER:
                source, result = node.arguments["self"], node.results[0]
                if result is not None:
                    self._keys[result.id] = self._key_of(source)
                continue
            arguments = map_leaves(self._key_of, list(node.arguments.items()))
            for place, result in enumerate(node.results):
                if result is not None:
                    self._keys[result.id] = hash((node.op, place, repr(arguments)))
        self._keyed = len(self.graph.nodes)
        return self._keys.get(value.id, value.id)

    def _key_of(self, argument: Any) -> Any:
        return self._keys.get(argument.id, argument.id) if isinstance(argument, Tensor) else argument

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one operation, or those of which PyTorch composes it."""
        if func in _SAME_VALUE:
            return Recorded(args[0].meta, args[0].value, self)
        if func in _SIZES:
            return func(args[0].meta, *args[1:], **kwargs)
        is_complex = any(isinstance(x, torch.Tensor) and x.is_complex() for x in leaves((args, kwargs)))
        supported = SUPPORTED_COMPLEX if is_complex else SUPPORTED
        if _full_name(func) not in supported and func not in self._composed:
            found = self._compose(func, args, kwargs)
            if found is not NotImplemented:
                return found
        given = self._arguments(func, args, kwargs)
        if func._schema.is_mutable:
            self._refuse(func, given, NotImplementedError("it writes into a tensor"))
        if func in _STRIDED and not args[0].meta.is_contiguous():
            # The importer counts elements in the order of the dimensions, PyTorch in that of the storage.
            self._refuse(func, given, ValueError("its tensor is not contiguous; call contiguous() before it"))
        outs = self._earlier_results(func, given)
        if outs is None:
            outs = self._shapes_of(func, args, kwargs, given)
        self.shapes.append((func, given, outs))
        results = map_leaves(lambda x: self.new_result(x) if isinstance(x, torch.Tensor) else x, outs)
        self._write(func, given, results)
        if isinstance(results, Recorded) and results.dtype == torch.int16:
            return self._wrap_int16(results)
        return results

    def _wrap_int16(self, wide: Recorded) -> Recorded:
        """Sign-extend the lower 16 bits of a result, as int16 arithmetic wraps around."""
        for shift in (torch.ops.aten.bitwise_left_shift, torch.ops.aten.bitwise_right_shift):
            shifted = self.new_result(wide.meta)
            self._write(shift.Tensor_Scalar, {"self": wide.value, "other": 16}, shifted)
            wide = shifted
        return wide

    def _shapes_of(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Any]
    ) -> Any:
        """Compute the results on the meta device, once for equal arguments."""
        # Layers, time steps and updates of equal parameters repeat. Without this cache PyTorch's shape
        # functions, many of them in Python, took half of the time of a recording.

        def to_meta(x: Any) -> Any:
            if isinstance(x, Recorded):
                return x.meta
            if isinstance(x, torch.Tensor):
                return x.to(META) if x.shape else x
            return META if isinstance(x, torch.device) else x

        key = _shapes_key((func, args, kwargs))
        outs = None if key is None else self._known_shapes.get(key)
        if outs is None:
            metas = map_leaves(to_meta, (args, kwargs))
            try:
                outs = _SHAPES.get(func, func)(*metas[0], **metas[1])
            except ToolkitError:
                raise
            except Exception as error:  # each shape function has its own exceptions
                self._refuse(func, given, error)
            if key is not None:
                self._known_shapes[key] = outs
        return outs

    def _earlier_results(self, func: Any, given: dict[str, Any]) -> Any:
        """Return the results if an earlier recording had the same operation at this position; else None."""
        place = len(self.shapes)
        if place < len(self.earlier):
            earlier, arguments, outs = self.earlier[place]
            if earlier is func and arguments == given:
                return outs
        return None

    def _refuse(self, func: Any, given: dict[str, Any], error: Exception) -> NoReturn:
        """Refuse an operation whose results have no shapes, with all those before it that have no rule."""
        place = self.places.here()
        node = Node(_full_name(func), given, (), *place)
        raise recording_error(
            self.graph, node, None if isinstance(error, NotImplementedError) else first_line(error)
        ) from error

    def _compose(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the decomposition of an operation; NotImplemented if it has none."""
        composed = _decomposition(func)
        if composed is None:
            return NotImplemented
        self._composed.append(func)
        try:
            with Factories(self):
                return composed(*args, **kwargs)
        finally:
            self._composed.pop()

    def _arguments(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        schema = func._schema
        given: dict[str, Any] = {}
        for position, argument in enumerate(schema.arguments):
            if position < len(args):
                given[argument.name] = self._argument(args[position])
            elif argument.name in kwargs:
                given[argument.name] = self._argument(kwargs[argument.name])
            elif argument.has_default_value():
                given[argument.name] = argument.default_value
        return given

    def _write(self, func: Any, given: dict[str, Any], results: Any) -> None:
        flat = list(results) if isinstance(results, tuple | list) else [results]
        values = tuple(x.value if isinstance(x, Recorded) else None for x in flat)
        place = self.places.here()
        if self._guarded:
            self.end_guarded()
        self.graph.nodes.append(Node(_full_name(func), given, values, *place))

    def _argument(self, x: Any) -> Any:
        if isinstance(x, Recorded):
            return x.value
        if isinstance(x, torch.Tensor):
            return self.constant(x).value
        if isinstance(x, list | tuple):
            return [self._argument(item) for item in x]
        if isinstance(x, torch.dtype):
            return dtype_name(torch.int32 if x == torch.int16 else x)
        return x if x is None or isinstance(x, bool | int | float | complex | str) else str(x)


class Factories(Mode):
    """Records operations that make tensors on the device, while one operation is composed of others."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if any(isinstance(x, Recorded) for x in leaves((args, keywords))) or keywords.get("device") == META:
            return self._recording.call(func, args, keywords)
        return func(*args, **keywords)


def _shapes_key(nest: Any) -> Hashable | None:
    """Return a key that is equal for calls with results of equal shapes; None if these depend on elements."""
    # Equal numbers of different types, such as 1 and 1.0, differ: they determine the type of a result.
    kind = type(nest)
    if kind is Recorded:
        meta = nest.meta
        return meta.shape, meta.stride(), meta.dtype, meta.is_conj(), meta.is_neg()
    if kind is tuple or kind is list:
        found = tuple([_shapes_key(x) for x in nest])
        return None if None in found else (kind, found)
    if kind is dict:
        return _shapes_key(tuple(nest.items()))
    return None if isinstance(nest, torch.Tensor | torch.Generator) else (kind, nest)


@cache
def _full_name(func: Any) -> str:
    return f"{func.namespace}.{func._schema.name.split('::')[1]}.{func._overloadname}"


_core_decompositions = cache(core_aten_decompositions)  # not on import: it takes a while


def _decomposition(func: Any) -> Callable[..., Any] | None:
    """Return the decomposition of an operation, ours or PyTorch's; None if there is none."""
    name = func._schema.name
    found = DECOMPOSED.get(name, _core_decompositions().get(func))
    if found is None:
        found = get_decompositions([func]).get(func)
        if getattr(found, "__module__", None) == _UNCOMPOSED:
            found = None
    if found is None and func._can_decompose():
        found = func.decompose
    if found is None and name.startswith(_OF_EACH):
        found = partial(_of_each, name.removeprefix(_OF_EACH))
    return found


def _of_each(name: str, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Apply an operation to each tensor of lists."""
    function = torch.linalg.vector_norm if name == "norm" else getattr(torch, name)

    def part(given: Any, index: int) -> Any:
        return given[index] if isinstance(given, list | tuple) else given

    return [
        function(*(part(given, i) for given in args), **{key: part(v, i) for key, v in kwargs.items()})
        for i in range(len(args[0]))
    ]
