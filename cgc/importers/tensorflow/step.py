"""Import a tf.Graph as one CIRH module: the whole step, forward, backward and update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.types import Tensor, tensor_type
from cgc.importers.diagnostics import Kind, Problem, RefusedError, raise_if_any
from cgc.importers.emit import Emitter, require_dtype
from cgc.importers.module import count_step, require_mode, state_types, step_module
from cgc.importers.tensorflow.body import BodyImporter
from cgc.importers.tensorflow.node import POISON, StepState, Value
from cgc.importers.tensorflow.origin import REMEDIES, describe_operation, describe_tensor
from cgc.importers.tensorflow.plan import StepPlan, plan_step, reachable


@dataclass(frozen=True)
class ImportedStep:
    """A step as CIRH.

    Attributes:
        module: one function `@graph`; its arguments are the state in the order in which the variables were
            created, then the batch; its results the new state, then the outputs.
        variables: resource name -> name of the TensorFlow variable, which is its key in a checkpoint.
        dropped: calls of the user that the step leaves out, each as `tf.print at FILE:LINE`.
    """

    module: ModuleOp
    variables: dict[str, str]
    dropped: tuple[str, ...]


def import_step(
    graph: tf.Graph,
    *,
    inputs: Sequence[tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
    updates: Sequence[tf.Operation | tf.Tensor],
    mode: str,
    seed: int,
    global_step: Any = None,
) -> ImportedStep:
    """Import one step of a graph: the operations that outputs and updates need.

    Reads of a variable that no edge of the graph puts after a write see the value before the step. Keras
    layers of the step update their own state (see `keras_layer_updates`).

    Args:
        graph: a tf.compat.v1 graph with resource variables.
        inputs: tensors of the graph that a batch feeds, in batch order, of static shape.
        outputs: name -> tensor; becomes the output `output_<name>`, in this order.
        updates: operations that change variables (the train op, metric updates).
        mode: "train", "eval" or "infer".
        seed: seed of random operations that have none.
        global_step: the variable of the step number; by default the graph's own.

    Returns:
        The module and the names of its state. The same program gives the same text.

    Raises:
        GraphImportError: lists all problems of the graph. Its class is that of the first kind of problem:
            UnsupportedOpsError, GraphTypeError, DynamicShapeError.
    """
    check_inputs(inputs, mode)
    roots = [tensor.op for tensor in outputs.values()]
    roots += [item if isinstance(item, tf.Operation) else item.op for item in updates]
    try:
        plan = plan_step(graph, roots, {tensor.name for tensor in inputs}, global_step)
    except RefusedError as refusal:
        raise_if_any([Problem(refusal.kind, str(refusal))], REMEDIES)
        raise
    module, dropped = assemble(plan, inputs, outputs, mode, seed)
    return ImportedStep(module, {v.resource_name: v.name for v in plan.variables.values()}, dropped)


def check_inputs(inputs: Sequence[tf.Tensor], mode: str) -> None:
    """Refuse an unknown mode, and tensors that no batch can feed, all at once.

    Raises:
        GraphImportError: see `import_step`.
    """
    require_mode(mode)
    problems: list[Problem] = []
    for tensor in inputs:
        try:
            _input_type(tensor)
        except RefusedError as refusal:
            problems.append(Problem(refusal.kind, str(refusal)))
    raise_if_any(problems, REMEDIES)


def assemble(
    plan: StepPlan,
    inputs: Sequence[tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
    mode: str,
    seed: int,
    known: Mapping[str, Value] | None = None,
) -> tuple[ModuleOp, tuple[str, ...]]:
    """Import the operations of a plan.

    Args:
        plan: the operations in order, and the variables.
        inputs: tensors that a batch feeds, which `check_inputs` has checked.
        outputs: name -> tensor; becomes `output_<name>`.
        mode: "train", "eval" or "infer".
        seed: seed of random operations that have none.
        known: values of tensors that no operation of the plan makes, by name.

    Returns:
        The module, and the calls of the user that it leaves out.

    Raises:
        GraphImportError: see `import_step`.
    """
    types = state_types(plan.variables.values(), REMEDIES)
    block = Block(arg_types=[*types, *map(_input_type, inputs)])
    fed = dict(zip((tensor.name for tensor in inputs), block.args[len(types) :], strict=True))
    current: dict[str, SSAValue] = dict(zip(plan.variables, block.args, strict=False))
    global_step = current.get(plan.global_step) if plan.global_step is not None else None
    step = StepState(plan.variables, current, seed, mode, global_step, plan.advances_global_step)
    if mode == "eval":
        # Operations that no output needs serve metrics.
        needed = reachable([t.op for t in outputs.values()], lambda op: [t.op for t in op.inputs])
        step.of_metrics = frozenset(op.name for op in plan.ops) - {op.name for op in needed}
    emit = Emitter(block)
    body = BodyImporter(emit, step, {**(known or {}), **fed})
    body.run(plan.ops)
    results = _results(outputs, body)
    raise_if_any(body.problems, REMEDIES)
    if len(results) != len(outputs):
        raise AssertionError(
            f"of outputs {list(outputs)} only {list(results)} were imported, without a problem"
        )
    if plan.counts_steps:
        assert plan.global_step is not None
        step.current[plan.global_step] = count_step(emit, step.current[plan.global_step])
        step.written.add(plan.global_step)
    state = list(plan.variables.values())
    written = {v.resource_name: step.current[v.key] for v in state if v.key in step.written}
    return step_module(block, state, written, results, mode, seed), tuple(step.dropped)


def _input_type(tensor: tf.Tensor) -> Tensor:
    what = f"input {tensor.name} {describe_tensor(tensor)}, {describe_operation(tensor.op).where}"
    dtype = require_dtype(tensor.dtype.name, what)
    if not tensor.shape.is_fully_defined():
        raise RefusedError(
            Kind.SHAPE,
            f"{what}: expected a size for every dimension; batch the dataset with "
            "batch(n, drop_remainder=True), and give other tensors their shape with set_shape()",
        )
    return tensor_type(tensor.shape.as_list(), dtype)


def _results(outputs: Mapping[str, tf.Tensor], body: BodyImporter) -> dict[str, SSAValue]:
    """Return the outputs by name; adds a problem for one that has no value on the device."""
    found: dict[str, SSAValue] = {}
    for name, tensor in outputs.items():
        value = body.values.get(tensor.name)
        if value is POISON:
            continue
        try:
            found[name] = body.as_output(tensor, value)
        except RefusedError as refusal:
            body.problems.append(Problem(refusal.kind, f"output {name}: {refusal}"))
    return found
