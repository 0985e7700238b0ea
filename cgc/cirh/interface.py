"""The interface of a step: state, batch inputs and outputs, as the `@graph` function declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region

from cgc.cirh.types import dtype_name, require_tensor
from cgc.errors import InvalidModuleError, InvalidOpError
from cs_toolkit.step import (
    GLOBAL_STEP,
    METRIC_STATE,
    MODEL_STATE,
    MODES,
    OPTIMIZER_STATE,
    Mode,
    StepInterface,
    TensorSpec,
)

RESOURCE_NAME = "tf.resource_name"
ALIASING_OUTPUT = "tf.aliasing_output"
INPUT_NAME = "cs.input_name"
OUTPUT_NAME = "cs.output_name"
MODE = "cs.mode"
SEED = "cs.seed"
STATE_PREFIXES = (MODEL_STATE, OPTIMIZER_STATE, METRIC_STATE)


@dataclass(frozen=True)
class InterfaceValue:
    """An argument or a result of `@graph`: its position, its type and its attributes."""

    where: str
    type: Attribute
    attributes: Mapping[str, Attribute]

    def text(self, key: str) -> str | None:
        """Return a string attribute, or None; InvalidModuleError if it is something else or empty."""
        attribute = self.attributes.get(key)
        if attribute is None:
            return None
        if not isinstance(attribute, StringAttr) or not attribute.data:
            raise InvalidModuleError(f"{self.where}: {key} is {attribute}, expected a non-empty string")
        return attribute.data

    def spec(self, name: str) -> TensorSpec:
        """Return name, dtype and shape; InvalidModuleError if the type is no static tensor of CIRH."""
        try:
            tensor = require_tensor(self.type)
        except InvalidOpError as error:
            raise InvalidModuleError(f"{self.where}: {error}") from error
        return TensorSpec(name, dtype_name(tensor), tensor.get_shape())


def graph_function(module: ModuleOp) -> FuncOp:
    """Return the one function of a module, `@graph`.

    Raises:
        InvalidModuleError: it is missing, or the module has other ops.
    """
    ops = list(module.body.block.ops) if module.body.blocks else []
    functions = [op for op in ops if isinstance(op, FuncOp)]
    names = [f"@{function.sym_name.data}" for function in functions]
    if len(ops) != 1 or names != ["@graph"]:
        got = ", ".join(names) if len(functions) == len(ops) else ", ".join(op.name for op in ops)
        raise InvalidModuleError(f"module holds {got or 'nothing'}, expected one function, func.func @graph")
    function = functions[0]
    if len(function.body.blocks) != 1 or function.get_return_op() is None:
        raise InvalidModuleError("func.func @graph: expected a body of one block that ends in func.return")
    return function


def build_graph_function(
    block: Block,
    terminator: ReturnOp,
    arguments: Iterable[Mapping[str, Attribute]],
    results: Iterable[Mapping[str, Attribute]],
) -> FuncOp:
    """Build `@graph` around a block that ends in `terminator`, with attributes of arguments and results."""
    return FuncOp(
        "graph",
        (block.arg_types, terminator.operand_types),
        Region(block),
        arg_attrs=ArrayAttr(DictionaryAttr(dict(attributes)) for attributes in arguments),
        res_attrs=ArrayAttr(DictionaryAttr(dict(attributes)) for attributes in results),
    )


def arguments_and_results(function: FuncOp) -> tuple[tuple[InterfaceValue, ...], tuple[InterfaceValue, ...]]:
    """Return types and attribute dictionaries of all arguments and results."""
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    arguments = _values("argument", inputs, function.arg_attrs)
    return arguments, _values("result", outputs, function.res_attrs)


def plain(attributes: DictionaryAttr) -> dict[str, Attribute]:
    """Return the contents of a dictionary attribute."""
    return dict(attributes.data.items())


def _values(
    kind: str, types: Sequence[Attribute], attributes: Iterable[DictionaryAttr] | None
) -> tuple[InterfaceValue, ...]:
    dictionaries = [DictionaryAttr({}) for _ in types] if attributes is None else list(attributes)
    if len(dictionaries) != len(types):
        raise InvalidModuleError(
            f"func.func @graph: {len(dictionaries)} {kind} attribute dictionaries, expected {len(types)}, "
            f"one for each {kind}"
        )
    return tuple(
        InterfaceValue(f"{kind} {index} of @graph", type_, plain(dictionary))
        for index, (type_, dictionary) in enumerate(zip(types, dictionaries, strict=True))
    )


def step_interface(module: ModuleOp) -> StepInterface:
    """Read and check the interface of a step.

    Raises:
        InvalidModuleError: names are missing, doubled or of the wrong form, an aliased result has another
            type than its argument, or a result is neither aliased nor named.
    """
    function = graph_function(module)
    arguments, results = arguments_and_results(function)
    inputs: list[TensorSpec] = []
    state: list[TensorSpec] = []
    aliases: dict[int, str] = {}
    for argument in arguments:
        resource, input_name = argument.text(RESOURCE_NAME), argument.text(INPUT_NAME)
        if (resource is None) == (input_name is None):
            got = "neither" if resource is None else "both"
            raise InvalidModuleError(
                f"{argument.where} has {got} of {RESOURCE_NAME} and {INPUT_NAME}, expected exactly one"
            )
        if resource is not None:
            _check_resource_name(argument, resource)
            state.append(argument.spec(resource))
            _add_alias(argument, resource, results, aliases)
        elif input_name is not None:
            inputs.append(argument.spec(_check_input_name(argument, input_name, len(inputs))))
    outputs = _outputs(results, aliases)
    _check_unique(spec.name for spec in chain(state, inputs, outputs))
    updated = set(aliases.values())
    return StepInterface(
        tuple(inputs), tuple(state), tuple(outputs), tuple(s.name for s in state if s.name in updated)
    )


def step_mode(module: ModuleOp) -> Mode:
    """Return the mode of a step, its attribute `cs.mode`.

    Raises:
        InvalidModuleError: the attribute is missing or invalid.
    """
    attribute = graph_function(module).attributes.get(MODE)
    text = attribute.data if isinstance(attribute, StringAttr) else None
    for mode in MODES:
        if mode == text:
            return mode
    raise InvalidModuleError(f"func.func @graph: {MODE} is {attribute}, expected one of {', '.join(MODES)}")


def alias_of(argument: InterfaceValue) -> int | None:
    """Return the index of the result that replaces an argument, if any."""
    alias = argument.attributes.get(ALIASING_OUTPUT)
    if alias is None:
        return None
    if not isinstance(alias, IntegerAttr):
        raise InvalidModuleError(f"{argument.where}: {ALIASING_OUTPUT} is {alias}, expected an integer")
    return int(alias.value.data)


def _check_resource_name(argument: InterfaceValue, name: str) -> None:
    long_enough = any(name.startswith(prefix) and name != prefix for prefix in STATE_PREFIXES)
    if name != GLOBAL_STEP and not long_enough:
        raise InvalidModuleError(
            f"{argument.where}: {RESOURCE_NAME} is {name!r}, "
            f"expected {', '.join(f'{prefix}<variable>' for prefix in STATE_PREFIXES)} or {GLOBAL_STEP}"
        )


def _check_input_name(argument: InterfaceValue, name: str, position: int) -> str:
    if name != f"input_{position}":
        raise InvalidModuleError(
            f"{argument.where}: {INPUT_NAME} is {name!r}, expected 'input_{position}'; "
            "inputs are numbered in batch order from 0"
        )
    if ALIASING_OUTPUT in argument.attributes:
        raise InvalidModuleError(f"{argument.where}: a batch input cannot have {ALIASING_OUTPUT}")
    return name


def _add_alias(
    argument: InterfaceValue, name: str, results: Sequence[InterfaceValue], aliases: dict[int, str]
) -> None:
    index = alias_of(argument)
    if index is None:
        return
    if not 0 <= index < len(results):
        raise InvalidModuleError(
            f"{argument.where} ({name}): {ALIASING_OUTPUT} is {index}, expected 0 to {len(results) - 1}"
        )
    if index in aliases:
        raise InvalidModuleError(f"result {index} of @graph replaces both {aliases[index]} and {name}")
    if results[index].type != argument.type:
        raise InvalidModuleError(
            f"result {index} of @graph has type {results[index].type}, "
            f"expected {argument.type}, the type of {name} that it replaces"
        )
    aliases[index] = name


def _outputs(results: Sequence[InterfaceValue], aliases: dict[int, str]) -> list[TensorSpec]:
    outputs = []
    for index, result in enumerate(results):
        name = result.text(OUTPUT_NAME)
        if name is None and index not in aliases:
            raise InvalidModuleError(
                f"{result.where} replaces no state and has no {OUTPUT_NAME}, expected one of the two"
            )
        if name is not None:
            if not name.startswith("output_") or name == "output_":
                raise InvalidModuleError(
                    f"{result.where}: {OUTPUT_NAME} is {name!r}, expected 'output_<name>'"
                )
            outputs.append(result.spec(name))
    return outputs


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidModuleError(f"the name {name!r} is used twice in the interface of @graph")
        seen.add(name)
