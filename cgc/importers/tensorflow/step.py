"""From a tf.Graph to one CIRH module: the whole step, forward, backward and update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from cgc.cirh.interface import ALIASING_OUTPUT, INPUT_NAME, MODE, OUTPUT_NAME, RESOURCE_NAME, SEED
from cgc.cirh.types import Tensor, tensor_type
from cgc.errors import GraphImportError
from cgc.importers.tensorflow.body import BodyImporter
from cgc.importers.tensorflow.emit import Emitter, require_dtype
from cgc.importers.tensorflow.faults import Fault, Kind, RefusedError, describe_tensor, raise_if_any, where
from cgc.importers.tensorflow.node import POISON, StepState, Value
from cgc.importers.tensorflow.plan import StepPlan, plan_step

MODES = ("train", "eval", "infer")


@dataclass(frozen=True)
class ImportedStep:
    """A step as CIRH.

    Attributes:
        module: one function `@graph`; its arguments are the state in the order in which the variables were
            created, then the batch; its results the new state, then the outputs.
        variables: resource name -> name of the TensorFlow variable, which is its key in a checkpoint.
    """

    module: ModuleOp
    variables: dict[str, str]


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
    """Imports one step of a graph: what the outputs and updates need, and nothing else.

    Reads of a variable that no edge of the graph puts behind a write see the value before the step. Keras
    layers of the step update their own state (see `keras_layer_updates`).

    Args:
        graph: a tf.compat.v1 graph with resource variables.
        inputs: tensors of the graph that a batch feeds, in batch order, of static shape.
        outputs: name -> tensor; becomes the output `output_<name>`, in this order.
        updates: operations that change variables (the train op, metric updates).
        mode: "train", "eval" or "infer".
        seed: seeds random operations that have no seed of their own.
        global_step: the variable of the step number; by default the graph's own.

    Returns:
        The module and the names of its state. The same program gives the same text.

    Raises:
        GraphImportError: everything that is wrong with the graph, at once. The class tells the first kind of
            fault: UnsupportedOpsError, GraphTypeError, DynamicShapeError.
    """
    if mode not in MODES:
        raise GraphImportError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    faults, argument_types = _input_types(inputs)
    raise_if_any(faults)
    roots = [tensor.op for tensor in outputs.values()]
    roots += [item if isinstance(item, tf.Operation) else item.op for item in updates]
    try:
        plan = plan_step(graph, roots, {tensor.name for tensor in inputs}, global_step)
        state_types = _state_types(plan)
    except RefusedError as refusal:
        raise_if_any([Fault(refusal.kind, str(refusal))])
        raise
    block = Block(arg_types=[*state_types, *argument_types])
    step, values = _initial_state(plan, block, mode, seed), _input_values(inputs, block, len(state_types))
    body = BodyImporter(Emitter(block), step, values)
    body.run(plan.ops)
    results = _results(outputs, body)
    raise_if_any(body.faults)
    if len(results) != len(outputs):
        raise AssertionError(
            f"of outputs {list(outputs)} only {list(results)} were imported, without a fault"
        )
    written = [variable for key, variable in plan.variables.items() if key in step.written]
    block.add_op(ReturnOp(*(step.current[variable.key] for variable in written), *results.values()))
    resources = [variable.resource_name for variable in plan.variables.values()]
    function = _function(
        block, resources, [v.resource_name for v in written], len(inputs), list(results), mode, seed
    )
    return ImportedStep(ModuleOp([function]), {v.resource_name: v.name for v in plan.variables.values()})


def _input_types(inputs: Sequence[tf.Tensor]) -> tuple[list[Fault], list[Tensor]]:
    faults: list[Fault] = []
    types: list[Tensor] = []
    for tensor in inputs:
        try:
            types.append(_input_type(tensor))
        except RefusedError as refusal:
            faults.append(Fault(refusal.kind, str(refusal)))
    return faults, types


def _input_type(tensor: tf.Tensor) -> Tensor:
    what = f"input {tensor.name} {describe_tensor(tensor)}, {where(tensor.op)}"
    dtype = require_dtype(tensor.dtype.name, what)
    if not tensor.shape.is_fully_defined():
        raise RefusedError(
            Kind.SHAPE,
            f"{what}: expected a size for every dimension; batch the dataset with "
            "batch(n, drop_remainder=True), and give other tensors their shape with set_shape()",
        )
    return tensor_type(tensor.shape.as_list(), dtype)


def _state_types(plan: StepPlan) -> list[Tensor]:
    return [
        tensor_type(variable.shape, require_dtype(variable.dtype, f"variable {variable.name}"))
        for variable in plan.variables.values()
    ]


def _initial_state(plan: StepPlan, block: Block, mode: str, seed: int) -> StepState:
    current: dict[str, SSAValue] = dict(zip(plan.variables, block.args, strict=False))
    global_step = current.get(plan.global_step) if plan.global_step is not None else None
    return StepState(plan.variables, current, seed, mode, global_step, plan.advances_global_step)


def _input_values(inputs: Sequence[tf.Tensor], block: Block, state_count: int) -> dict[str, Value]:
    return {tensor.name: argument for tensor, argument in zip(inputs, block.args[state_count:], strict=True)}


def _results(outputs: Mapping[str, tf.Tensor], body: BodyImporter) -> dict[str, SSAValue]:
    """The outputs by name; adds a fault for one that has no value on the device."""
    found: dict[str, SSAValue] = {}
    for name, tensor in outputs.items():
        value = body.values.get(tensor.name)
        if value is POISON:
            continue
        try:
            found[f"output_{name}"] = body.as_output(tensor, value)
        except RefusedError as refusal:
            body.faults.append(Fault(refusal.kind, f"output {name}: {refusal}"))
    return found


def _function(
    block: Block,
    resources: Sequence[str],
    written: Sequence[str],
    input_count: int,
    outputs: Sequence[str],
    mode: str,
    seed: int,
) -> FuncOp:
    """Wraps a body with the names of its arguments and results."""
    arguments: list[dict[str, Attribute]] = []
    for name in resources:
        attributes: dict[str, Attribute] = {RESOURCE_NAME: StringAttr(name)}
        if name in written:
            attributes[ALIASING_OUTPUT] = IntegerAttr(written.index(name), i64)
        arguments.append(attributes)
    arguments += [{INPUT_NAME: StringAttr(f"input_{i}")} for i in range(input_count)]
    results: list[dict[str, Attribute]] = [{} for _ in written]
    results += [{OUTPUT_NAME: StringAttr(name)} for name in outputs]
    terminator = block.last_op
    assert isinstance(terminator, ReturnOp)
    function = FuncOp(
        "graph",
        (block.arg_types, terminator.operand_types),
        Region(block),
        arg_attrs=ArrayAttr(DictionaryAttr(attributes) for attributes in arguments),
        res_attrs=ArrayAttr(DictionaryAttr(attributes) for attributes in results),
    )
    function.attributes[MODE] = StringAttr(mode)
    function.attributes[SEED] = IntegerAttr(seed, i64)
    return function
