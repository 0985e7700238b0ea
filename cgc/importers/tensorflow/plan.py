"""Plan a step: its operations in order, and the variables that they use."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from cgc.importers.tensorflow.handlers.control_flow import function_names
from cgc.importers.tensorflow.handlers.random import STEP_DEPENDENT
from cgc.importers.tensorflow.handlers.variables import DROPPED
from cgc.importers.tensorflow.variables import (
    Variable,
    accesses,
    global_step_key,
    is_write,
    keras_layer_updates,
    name_variables,
)

_VALUELESS = frozenset({"Const", "VarHandleOp", "NoOp"})
# Graphs of functions in the form of TensorFlow 1, which keeps only definitions; tf.nn.ctc_loss has such.
_DEFINED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@dataclass(frozen=True)
class StepPlan:
    """The operations of a step.

    Attributes:
        ops: in an order that respects data, control and variables.
        variables: the variables that are read or written, by key, in the order in which they were created.
        global_step: the key of the global step, whether used or not; None if the graph has none.
        advances_global_step: whether the step writes it.
        counts_steps: whether the graph has no global step, so that one has to be added to it.
    """

    ops: tuple[Any, ...]
    variables: dict[str, Variable]
    global_step: str | None
    advances_global_step: bool
    counts_steps: bool = False


def plan_step(
    graph: tf.Graph, roots: Iterable[Any], fed: Collection[str], global_step: Any = None
) -> StepPlan:
    """Collect and order the operations that `roots` need.

    Args:
        graph: the graph.
        roots: operations that must run.
        fed: names of the tensors that a batch feeds; operations that make them are left out.
        global_step: the step number's variable; by default the graph's own.

    Raises:
        RefusedError: a used variable has no static shape.
    """
    ops = _with_layer_updates(graph, list(roots), frozenset(fed))
    step_key = global_step_key(graph, global_step)
    used = [accesses(op) for op in ops]
    written = frozenset().union(*(a.writes for a in used))
    keys = written.union(*(a.reads for a in used))
    if step_key is not None and _draws_by_step(ops):
        keys |= {step_key}
    variables = name_variables(graph, ops, keys, step_key)
    index = {op.name: i for i, op in enumerate(ops)}
    nodes = [
        Node(i, tuple(_indices(_needs(op, fed), index)), a.reads, a.writes)
        for i, (op, a) in enumerate(zip(ops, used, strict=True))
    ]
    ordered = tuple(ops[i] for i in order_nodes(nodes))
    return StepPlan(ordered, variables, step_key, step_key in written)


def plan_traced(
    body: Any, variables: Mapping[str, Variable], global_step: Variable | None, counts_steps: bool
) -> StepPlan:
    """Plan a traced function that is a whole step.

    Args:
        body: its FuncGraph.
        variables: the variables that it captures, by key; unused ones are left out.
        global_step: the variable of the step number, among `variables` or, if the function does not count
            steps, a separate one; None if steps are not counted.
        counts_steps: whether it is a separate one.
    """
    ops = plan_function(body)
    used = [accesses(op) for op in ops]
    keys = frozenset().union(*(a.reads | a.writes for a in used))
    found = {key: variable for key, variable in variables.items() if key in keys}
    if global_step is None:
        return StepPlan(ops, found, None, advances_global_step=False)
    found[global_step.key] = global_step
    return StepPlan(ops, found, global_step.key, advances_global_step=True, counts_steps=counts_steps)


def plan_function(body: Any) -> tuple[Any, ...]:
    """Return the operations of a function in order: those that results need and those that change variables.

    TensorFlow traces a function in the order of the program, so creation order decides where edges do not.
    """
    roots = [tensor.op for tensor in body.outputs] + list(body.control_outputs)
    roots += [op for op in body.get_operations() if is_write(op)]
    ops = _needed(body, roots, frozenset())
    index = {op.name: i for i, op in enumerate(ops)}
    nodes = [Node(i, tuple(_indices(_needs(op, ()), index))) for i, op in enumerate(ops)]
    return tuple(ops[i] for i in order_nodes(nodes))


def _draws_by_step(ops: Iterable[Any]) -> bool:
    """Return whether random numbers of operations, or of functions they call, depend on the step."""
    for op in ops:
        if op.type in STEP_DEPENDENT:
            return True
        functions = (op.graph._get_function(name) for name in function_names(op))
        # Functions without a body are refused at their call.
        bodies = (function.graph for function in functions if hasattr(function, "graph"))
        if any(_draws_by_step(body.get_operations()) for body in bodies):
            return True
    return False


def function_body(op: Any, name: str) -> Any:
    """Return the FuncGraph of a function that an operation calls."""
    # No public way leads from a call to the traced body of its function.
    function = op.graph._get_function(name)
    if hasattr(function, "graph"):
        return function.graph
    if function not in _DEFINED:
        with op.graph.as_default():
            _DEFINED[function] = function_def_to_graph(function.definition, include_library_functions=True)
    return _DEFINED[function]


def _with_layer_updates(graph: tf.Graph, roots: list[Any], fed: frozenset[str]) -> list[Any]:
    """Return the needed operations in creation order, with the updates that Keras layers among them make."""
    found = _needed(graph, roots, fed)
    names = {op.name for op in found}
    read = frozenset().union(*(accesses(op).reads for op in found))
    updates = [
        op for op in keras_layer_updates(graph) if accesses(op).writes & read or _takes_values_of(op, names)
    ]
    return _needed(graph, roots + updates, fed) if updates else found


def _takes_values_of(update: Any, names: Collection[str]) -> bool:
    """Return whether the new value of a variable depends on a new value of the step, like an average."""
    seen = {update.name}
    stack = [tensor.op for tensor in update.inputs[1:]]
    while stack:
        op = stack.pop()
        if op.name in names and op.type not in _VALUELESS:
            return True
        if op.name not in seen:
            seen.add(op.name)
            stack += [tensor.op for tensor in op.inputs]
    return False


def _needed(graph: tf.Graph, roots: Sequence[Any], fed: frozenset[str]) -> list[Any]:
    by_name = {op.name: op for op in graph.get_operations()}
    names = reachable([op.name for op in roots], lambda name: [op.name for op in _needs(by_name[name], fed)])
    return [op for name, op in by_name.items() if name in names]


def _needs(op: Any, fed: Collection[str]) -> list[Any]:
    """Return the operations that must have run before `op`."""
    if op.type in DROPPED or any(tensor.name in fed for tensor in op.outputs):
        return []
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def _indices(ops: Iterable[Any], index: dict[str, int]) -> list[int]:
    return [index[op.name] for op in ops]


# A TensorFlow session orders reads and writes of a variable only by data and control edges; the rest is a
# race. Here a read that no edge puts after a write comes before it.
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class Node:
    """One operation as the scheduler sees it.

    Attributes:
        index: its position in creation order, unique in a graph, which breaks ties.
        predecessors: indices of the operations whose data or control outputs it needs.
        reads: keys of the variables whose current value it takes.
        writes: keys of the variables that it replaces (an update in place is a write).
    """

    index: int
    predecessors: tuple[int, ...]
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


def reachable(roots: Iterable[Item], predecessors: Callable[[Item], Iterable[Item]]) -> set[Item]:
    """Return the roots and everything that they need, each visited once."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        for item in predecessors(stack.pop()):
            if item not in seen:
                seen.add(item)
                stack.append(item)
    return seen


def order_nodes(nodes: Sequence[Node]) -> list[int]:
    """Order nodes: edges first, then unordered reads before writes, then creation order.

    The work is linear in edges plus, per variable, its reads times its writes.

    Returns:
        The indices of all nodes. Where the read-before-write rule contradicts itself (reads and writes of two
        variables that cross) the earliest created node goes first; nodes on a cycle of edges come last, in
        creation order, because their operations (loops) are refused later, by name.
    """
    hard = {node.index: tuple(p for p in dict.fromkeys(node.predecessors)) for node in nodes}
    hard = {index: tuple(p for p in sources if p in hard) for index, sources in hard.items()}
    return _topological_order(hard, _unordered_reads(nodes, hard))


def _unordered_reads(nodes: Sequence[Node], hard: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Return for each write the reads of its variables that no edge puts after it."""
    readers: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        for key in node.reads:
            readers[key].append(node.index)
    writes = [node for node in nodes if node.writes]
    bit = {node.index: 1 << position for position, node in enumerate(writes)}
    # One integer per node holds the set of writes before it: 10,000 operations with 200 variables take
    # milliseconds.
    before: dict[int, int] = {}
    for index in _topological_order(hard, {}):
        mask = 0
        for source in hard[index]:
            mask |= before.get(source, 0) | bit.get(source, 0)
        before[index] = mask
    soft: dict[int, tuple[int, ...]] = {}
    for node in writes:
        own = bit[node.index]
        reads = {r for key in node.writes for r in readers[key] if r != node.index and not before[r] & own}
        if reads:
            soft[node.index] = tuple(sorted(reads))
    return soft


def _topological_order(hard: dict[int, tuple[int, ...]], soft: dict[int, tuple[int, ...]]) -> list[int]:
    """Sort topologically by hard and soft edges; soft edges that close a cycle are dropped."""
    if all(
        source < index for edges in (hard, soft) for index, sources in edges.items() for source in sources
    ):
        return sorted(hard)  # creation order; the general case gives the same in ten times the time
    successors: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    open_hard: dict[int, int] = {}
    open_soft: dict[int, int] = {}
    for index, sources in hard.items():
        wanted = soft.get(index, ())
        open_hard[index], open_soft[index] = len(sources), len(wanted)
        for source in sources:
            successors[source].append((index, True))
        for source in wanted:
            successors[source].append((index, False))
    ready = [i for i in hard if not open_hard[i] and not open_soft[i]]
    waiting = [i for i in hard if not open_hard[i] and open_soft[i]]
    heapq.heapify(ready)
    heapq.heapify(waiting)
    leftover = iter(sorted(hard))
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(hard):
        index = _next(ready, waiting, leftover, done)
        done.add(index)
        order.append(index)
        for target, is_hard in successors[index]:
            counts = open_hard if is_hard else open_soft
            counts[target] -= 1
            if not open_hard[target]:
                heapq.heappush(waiting if open_soft[target] else ready, target)
    return order


def _next(ready: list[int], waiting: list[int], leftover: Iterable[int], done: set[int]) -> int:
    for heap in (ready, waiting):
        while heap:
            index = heapq.heappop(heap)
            if index not in done:
                return index
    return next(index for index in leftover if index not in done)
