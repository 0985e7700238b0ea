"""Import a recorded step as one CIRH module: forward, backward and update."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.types import Tensor as TensorType
from cgc.cirh.types import dtype_name, shape_of, tensor_of, tensor_type
from cgc.errors import CompileError, GraphImportError
from cgc.importers.aten.graph import COMPLEX, Graph, Node, Tensor, check_output, is_complex
from cgc.importers.aten.handlers.table import handler_of
from cgc.importers.aten.node import ClassGrad, Complex, Deferred, NodeContext, StepState, Value
from cgc.importers.diagnostics import (
    Described,
    Kind,
    Operation,
    Problem,
    RefusedError,
    import_error,
    raise_if_any,
    unknown_operations,
)
from cgc.importers.emit import Emitter, require_dtype
from cgc.importers.module import StateTensor, count_step, require_mode, state_types, step_module
from cs_toolkit.step import GLOBAL_STEP


class _Poison:
    """The value of a tensor that could not be imported; its problem is recorded already."""


_POISON = _Poison()


class _AfterProblemError(Exception):
    """An operation reads what could not be imported."""


def import_step(graph: Graph, *, mode: str, seed: int) -> ModuleOp:
    """Import the operations that the updates and outputs of a recorded step need.

    A counter of steps is part of the state of every step; random operations draw by it.

    Args:
        graph: the step.
        mode: "train", "eval" or "infer"; only training advances the counter.
        seed: seed of random operations.

    Returns:
        One function `@graph`: its arguments are the state and the batch, its results the new state and the
        outputs. The same graph gives the same text.

    Raises:
        GraphImportError: lists all problems of the graph. Its class is that of the first kind of problem:
            UnsupportedOpsError, GraphTypeError.
    """
    require_mode(mode)
    state = [StateTensor(name, name, *t.stored) for name, t in graph.state.items()]
    state.append(StateTensor("global_step", GLOBAL_STEP, "int64", ()))
    block = Block(arg_types=[*state_types(state, REMEDIES), *_input_types(graph)])
    emit, step = Emitter(block), block.args[len(graph.state)]
    given = [*graph.state.values(), None, *graph.inputs]
    values = {tensor.id: value for tensor, value in zip(given, block.args, strict=True) if tensor is not None}
    body = _Body(graph, emit, StepState(seed, step), values)
    body.run()
    raise_if_any(body.problems, REMEDIES)
    written = {name: body.final(graph.updates[name]) for name in graph.state if name in graph.updates}
    outputs = {name: body.final(tensor) for name, tensor in graph.outputs.items()}
    for number, check in enumerate(graph.checks):
        outputs[check_output(number)] = emit.cast(body.final(check.tensor), "int32")
    if mode == "train":
        written[GLOBAL_STEP] = count_step(emit, step)
    return step_module(block, state, written, outputs, mode, seed)


def recording_error(graph: Graph, node: Node, reason: str | None) -> GraphImportError:
    """Return the error of an operation at which recording ends, because its results have no known shapes.

    Args:
        graph: the step before it. Its operations without a rule are listed too, needed or not.
        node: the operation, without results.
        reason: what PyTorch says of it; None where the operation has no shapes for this device at all.
    """
    unknown = [operation(other) for other in graph.nodes if handler_of(other) is None]
    if reason is None:
        return import_error(unknown_operations([*unknown, operation(node)], REMEDIES), REMEDIES)
    given = ", ".join(str(describe(tensor)) for tensor in node.tensors())
    problem = operation(node).problem(Kind.USAGE, f"got {given or 'no tensors'}: {reason}", REMEDIES)
    return import_error([*unknown_operations(unknown, REMEDIES), problem], REMEDIES)


class _Body:
    """Imports operations in sequence, and collects their problems."""

    def __init__(self, graph: Graph, emit: Emitter, step: StepState, values: Mapping[int, SSAValue]) -> None:
        self.problems: list[Problem] = []
        self._graph, self._emit, self._step = graph, emit, step
        self._values: dict[int, Value | _Poison] = dict(values)

    def run(self) -> None:
        """Import the operations that updates and outputs need."""
        unknown = [node for node in _list_needed_nodes(self._graph) if not self._import(node)]
        self.problems = unknown_operations(map(operation, unknown), REMEDIES) + self.problems

    def final(self, tensor: Tensor) -> SSAValue:
        """Return a result of the step."""
        value = self._value_of(tensor)
        if isinstance(value, ClassGrad | Deferred):
            value = value.dense()
        if isinstance(value, Complex):
            value = value.join_parts(self._emit)
        if value is None:
            raise AssertionError(f"%{tensor.id} was never computed")
        return value

    def _import(self, node: Node) -> bool:
        """Import one operation; False if there is no rule for it."""
        for result in node.results:
            if result is not None:
                self._values[result.id] = _POISON
        handler = handler_of(node)
        if handler is None:
            return False
        # Parts of complex numbers stay in float32, as those of PyTorch do under autocast.
        outside = is_complex(node) or (self._graph.half is not None and node.half is None)
        self._emit.label(".".join((*node.layer, node.op)), node.source, node.layer, float32=outside)
        try:
            if any(isinstance(self._values.get(tensor.id), _Poison) for tensor in node.tensors()):
                raise _AfterProblemError  # the problem was reported at its source
            for result in node.results:
                if result is not None and result.dtype != COMPLEX:
                    require_dtype(result.dtype, "its result")
            found = handler(NodeContext(node, self._emit, self._step, self._value_of))
            self._keep(node, found if isinstance(found, tuple | list) else (found,))
        except _AfterProblemError:
            pass
        except RefusedError as refusal:
            self.problems.append(operation(node).problem(refusal.kind, str(refusal), REMEDIES))
        except (CompileError, ValueError, IndexError) as error:
            self.problems.append(operation(node).problem(Kind.USAGE, str(error), REMEDIES))
        return True

    def _keep(self, node: Node, found: tuple[Value, ...] | list[Value]) -> None:
        """Record results, which must have the types that PyTorch inferred."""
        for tensor, value in zip(node.results, found, strict=True):
            if tensor is None:
                continue
            parts = (value.re, value.im) if isinstance(value, Complex) else (value,)
            dtype = "float32" if isinstance(value, Complex) else tensor.dtype
            for part in parts:
                if not isinstance(part, SSAValue):
                    continue
                got = dtype_name(tensor_of(part)), shape_of(part)
                if got != (dtype, tensor.shape):
                    where = operation(node).where
                    raise AssertionError(
                        f"{node.op}, {where}: imported as {got}, PyTorch says {describe(tensor)}"
                    )
            self._values[tensor.id] = value

    def _value_of(self, tensor: Tensor) -> Value:
        found = self._values.get(tensor.id)
        if found is None and tensor.id in self._graph.constants:
            found = self._constant(tensor)
        if tensor.dtype == COMPLEX and isinstance(found, SSAValue):  # of the state, or of the batch
            found = self._values[tensor.id] = Complex.split(self._emit, found)
        if isinstance(found, _Poison):
            raise _AfterProblemError
        return found

    def _constant(self, tensor: Tensor) -> Value:
        array, compact = self._graph.constants[tensor.id].array, self._emit.compact
        is_pair = tensor.dtype == COMPLEX
        found = Complex(compact(array[..., 0]), compact(array[..., 1])) if is_pair else compact(array)
        self._values[tensor.id] = found
        return found


def _list_needed_nodes(graph: Graph) -> list[Node]:
    """Return the operations that updates and outputs depend on, in order."""
    checked = (check.tensor for check in graph.checks)
    wanted = {tensor.id for tensor in (*graph.updates.values(), *graph.outputs.values(), *checked)}
    found: list[Node] = []
    for node in reversed(graph.nodes):
        if any(result is not None and result.id in wanted for result in node.results):
            found.append(node)
            wanted.update(tensor.id for tensor in node.tensors())
    return found[::-1]


def _input_types(graph: Graph) -> list[TensorType]:
    problems: list[Problem] = []
    types: list[TensorType] = []
    for position, tensor in enumerate(graph.inputs):
        try:
            dtype, shape = tensor.stored
            types.append(tensor_type(shape, require_dtype(dtype, f"tensor {position} of the batch")))
        except RefusedError as refusal:
            problems.append(Problem(refusal.kind, str(refusal)))
    raise_if_any(problems, REMEDIES)
    return types


_SIZES = "its result has a size that depends on the data; use torch.where(condition, x, y) or a mask"
_COMPLEX = "it has no rule for complex numbers; write it with their real and imaginary parts"
# Suggestions for operations that have no handler.
ADVICE = {
    **dict.fromkeys(
        (
            "aten.nonzero.default",
            "aten.masked_select.default",
            "aten._unique2.default",
            "aten.bincount.default",
            "aten.index.Tensor",
        ),
        _SIZES,
    ),
}

REMEDIES = {
    Kind.UNKNOWN_OP: "write the step with operations that the CS system has, or compute this in the input "
    "function, which runs on the workers",
    Kind.TYPE: "the CS system computes in float32, float16, bfloat16 and integers of at most 32 bits; give "
    "dtype=torch.float32 where the tensor is made, or call .float(); complex numbers "
    "are complex64",
}


def operation(node: Node) -> Operation:
    """Return a node by the module that it belongs to, and the user's line."""
    results = tuple(describe(tensor) for tensor in node.results if tensor is not None)
    advice = ADVICE.get(node.op, _COMPLEX if is_complex(node) else None)
    return Operation(node.op, ".".join(node.layer), node.source, results, advice, "module", node.library)


def describe(tensor: Tensor) -> Described:
    """Describe element type and shape."""
    return Described(tensor.dtype, tensor.shape)
