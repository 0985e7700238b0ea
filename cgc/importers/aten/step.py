"""From a recorded step to one CIRH module: the whole step, forward, backward and update."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.types import Tensor as TensorType
from cgc.cirh.types import dtype_name, shape_of, tensor_of, tensor_type
from cgc.errors import CompileError, GraphImportError
from cgc.importers.aten.faults import REMEDIES, describe, fault_of, where
from cgc.importers.aten.graph import Graph, Node, Tensor
from cgc.importers.aten.handlers import HANDLERS
from cgc.importers.aten.node import ClassGrad, NodeContext, StepState, Value
from cgc.importers.emit import Emitter, require_dtype
from cgc.importers.faults import Fault, Kind, RefusedError, raise_if_any
from cgc.importers.module import MODES, step_module
from cs_toolkit.step import GLOBAL_STEP


class _Poison:
    """The value of a tensor that could not be imported; its fault is recorded already."""


_POISON = _Poison()


def import_step(graph: Graph, *, mode: str, seed: int) -> ModuleOp:
    """Imports what the updates and outputs of a recorded step need, and nothing else.

    A counter of steps is part of the state of every step; random operations draw by it.

    Args:
        graph: the step.
        mode: "train", "eval" or "infer"; a training advances the counter.
        seed: of random operations.

    Returns:
        One function `@graph`: its arguments are the state and the batch, its results the new state and the
        outputs. The same graph gives the same text.

    Raises:
        GraphImportError: everything that is wrong with the graph, at once. The class tells the first kind of
            fault: UnsupportedOpsError, GraphTypeError.
    """
    if mode not in MODES:
        raise GraphImportError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    resources = [*graph.state, GLOBAL_STEP]
    counter = tensor_type([], "int64")
    block = Block(arg_types=[*_types(graph), counter, *_input_types(graph)])
    emit = Emitter(block)
    state_args = block.args[: len(graph.state)]
    step = block.args[len(graph.state)]
    inputs = block.args[len(graph.state) + 1 :]
    values: dict[int, Value | _Poison] = dict(
        zip((tensor.id for tensor in graph.state.values()), state_args, strict=True)
    )
    values.update(zip((tensor.id for tensor in graph.inputs), inputs, strict=True))
    body = _Body(graph, emit, StepState(seed, step), values)
    body.run()
    updates = {name: body.final(tensor, name) for name, tensor in graph.updates.items()}
    outputs = {f"output_{name}": body.final(tensor, name) for name, tensor in graph.outputs.items()}
    raise_if_any(body.faults, REMEDIES)
    if mode == "train":
        emit.label("global_step", None, ())
        updates[GLOBAL_STEP] = emit.add(step, emit.constant(np.asarray(1, np.int64)))
    written = [name for name in resources if name in updates]
    results = [*(updates[name] for name in written), *outputs.values()]
    block.add_op(ReturnOp(*(value for value in results if value is not None)))
    return step_module(block, resources, written, len(graph.inputs), list(outputs), mode, seed)


class _Body:
    """Imports operations one after the other, and collects what is wrong with them."""

    def __init__(
        self, graph: Graph, emit: Emitter, step: StepState, values: dict[int, Value | _Poison]
    ) -> None:
        self.faults: list[Fault] = []
        self._graph, self._emit, self._step, self._values = graph, emit, step, values

    def run(self) -> None:
        """Imports the operations that updates and outputs need."""
        for node in _needed(self._graph):
            self._import(node)

    def final(self, tensor: Tensor, name: str) -> SSAValue | None:
        """A result of the step; None where a fault keeps it from being one."""
        try:
            value = self._value_of(tensor)
        except _BehindFaultError:
            return None
        if isinstance(value, ClassGrad):
            value = value.dense()
        if value is None:
            raise AssertionError(f"{name}: %{tensor.id} was never computed")
        return value

    def _import(self, node: Node) -> None:
        for result in node.results:
            if result is not None:
                self._values[result.id] = _POISON
        handler = HANDLERS.get(node.op)
        if handler is None:
            self.faults.append(fault_of(Kind.UNKNOWN_OP, node, "no such operation on the CS system"))
            return
        self._emit.label(".".join((*node.layer, node.op)), node.source, node.layer)
        try:
            for result in node.results:
                if result is not None:
                    require_dtype(result.dtype, "its result")
            found = handler(NodeContext(node, self._emit, self._step, self._value_of))
            self._keep(node, found if isinstance(found, tuple | list) else (found,))
        except _BehindFaultError:
            return
        except RefusedError as refusal:
            self.faults.append(fault_of(refusal.kind, node, str(refusal)))
        except (CompileError, ValueError, IndexError) as error:
            self.faults.append(fault_of(Kind.USAGE, node, str(error)))

    def _keep(self, node: Node, found: tuple[Value, ...] | list[Value]) -> None:
        """Results must have the types that PyTorch inferred; anything else is an error of the handler."""
        for tensor, value in zip(node.results, found, strict=True):
            if tensor is None:
                continue
            if isinstance(value, SSAValue):
                got = dtype_name(tensor_of(value)), shape_of(value)
                if got != (tensor.dtype, tensor.shape):
                    raise AssertionError(
                        f"{node.op}, {where(node)}: imported as {got[0]}{list(got[1])}, "
                        f"PyTorch says {describe(tensor)}"
                    )
            self._values[tensor.id] = value

    def _value_of(self, tensor: Tensor) -> Value:
        found = self._values.get(tensor.id)
        if found is None and tensor.id in self._graph.constants:
            found = self._values[tensor.id] = self._emit.compact(self._graph.constants[tensor.id].array)
        if isinstance(found, _Poison):
            raise _BehindFaultError
        return found


class _BehindFaultError(Exception):
    """An operation reads what could not be imported."""


def _needed(graph: Graph) -> list[Node]:
    """The operations that updates and outputs depend on, in order."""
    wanted = {tensor.id for tensor in (*graph.updates.values(), *graph.outputs.values())}
    found: list[Node] = []
    for node in reversed(graph.nodes):
        if any(result is not None and result.id in wanted for result in node.results):
            found.append(node)
            wanted.update(tensor.id for tensor in tensors_of(node))
    return found[::-1]


def tensors_of(node: Node) -> list[Tensor]:
    """All tensors among the arguments of an operation."""
    found: list[Tensor] = []
    for argument in node.arguments.values():
        items = argument if isinstance(argument, list | tuple) else (argument,)
        found += [item for item in items if isinstance(item, Tensor)]
    return found


def _types(graph: Graph) -> list[TensorType]:
    return [_type(tensor, f"the state {name}") for name, tensor in graph.state.items()]


def _input_types(graph: Graph) -> list[TensorType]:
    return [_type(tensor, f"tensor {i} of the batch") for i, tensor in enumerate(graph.inputs)]


def _type(tensor: Tensor, what: str) -> TensorType:
    try:
        return tensor_type(tensor.shape, require_dtype(tensor.dtype, what))
    except RefusedError as refusal:
        raise_if_any([Fault(refusal.kind, str(refusal))], REMEDIES)
        raise
