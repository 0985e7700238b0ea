"""The context of a handler: the operation, its inputs, and the state of the step.

A handler imports the operations of one or a few types: it takes a `NodeContext` and returns the value of its
output, a tuple of values, or None if there is no output. `handlers.table` holds all handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh.types import shape_of
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Array, Emitter, Shape, narrow_dtype
from cgc.importers.tensorflow.constant_folding import Constants, Waiting
from cgc.importers.tensorflow.origin import describe_tensor
from cgc.importers.tensorflow.variables import Variable


# TensorFlow passes variants, lists of tensors and optional tensors, from loops and branches to their
# gradients. Loops are unrolled and branches computed side by side, so every variant is known item by item,
# and none reaches the device.
@dataclass(frozen=True)
class TensorList:
    """The value of a list of tensors.

    Attributes:
        items: a value each, of any kind; None where nothing was put yet.
        dtype: numpy name of the element type, or "variant".
        is_open: whether TensorFlow would have only some of the items, from the first on, and how many
            depends on the data. Only the gradient of the loop that put them there may take them.
    """

    items: tuple[Any, ...]
    dtype: str
    is_open: bool = False

    def put(self, position: int, item: Any) -> TensorList:
        """Return the list with one item replaced; as in TensorFlow's TensorArray it grows where it has to."""
        items = [*self.items, *[None] * (position + 1 - len(self.items))]
        items[position] = item
        return replace(self, items=tuple(items))


@dataclass(frozen=True)
class Optional:
    """The value of an optional that holds something."""

    components: tuple[Any, ...]


@dataclass(frozen=True)
class Either:
    """The value of an optional that the branches of a condition returned.

    Attributes:
        selector: the value that chooses the branch.
        options: the value of each branch; it is read only where the same selector chooses again, in the
            gradient of the condition.
    """

    selector: Any
    options: tuple[Any, ...]


class Missing:
    """The value of an empty optional: the missing result of the branch that was not taken."""


MISSING = Missing()


@dataclass(frozen=True)
class Handle:
    """The value of a resource tensor: the key of its variable."""

    key: str


@dataclass(frozen=True)
class SeedKey:
    """The value of the key and the counter of a stateless random op: the seed integers of both."""

    seed: SSAValue


@dataclass(frozen=True)
class PaddedRows:
    """The value of a tensor with one row for each distinct value of `tf.unique`.

    Attributes:
        value: its rows; the rows beyond those of TensorFlow are padding without a meaning.
        unique: the distinct values. Two tensors have the same padded rows if this is the same.
    """

    value: SSAValue
    unique: SSAValue


@dataclass(frozen=True)
class PaddedSize:
    """The value of sizes of a tensor with padded rows.

    Attributes:
        sizes: integers, with the padded number of rows.
        is_open: True for sizes that TensorFlow would have without padding.
        unique: as in `PaddedRows`.
    """

    sizes: Array
    is_open: Array
    unique: SSAValue


@dataclass(frozen=True)
class SelectedRows:
    """The value of a tensor with as many rows as a mask selects.

    Attributes:
        value: a row for each element of the mask; those that it does not select have no meaning.
        places: the places of the elements of the mask, `[elements, rank]`.
        mask: truth, in the shape in which it was given.
    """

    value: SSAValue
    places: SSAValue
    mask: SSAValue


@dataclass(frozen=True)
class FloatBits:
    """The value of a Bitcast: the bits of floats, read as integers of type `dtype`."""

    value: SSAValue
    dtype: str


class Poison:
    """The value of a tensor that could not be imported; its problem is recorded already."""


POISON = Poison()
Value: TypeAlias = (
    SSAValue
    | Array
    | Handle
    | SeedKey
    | PaddedRows
    | PaddedSize
    | SelectedRows
    | FloatBits
    | TensorList
    | Optional
    | Either
    | Missing
    | Waiting
    | Poison
    | None
)
Result: TypeAlias = "Value | Sequence[Value]"


@dataclass
class StepState:
    """State that the operations of one step share.

    Attributes:
        variables: the variables that the step uses, by key.
        current: the value of each at this point of the step.
        seed: the seed of random operations that have none.
        global_step: the step number before this step, or None if the graph has none.
        mode: "train", "eval" or "infer".
        advances_global_step: whether the step counts itself.
        written: keys of the variables that were replaced.
        branches: selector of each condition around this point of the step -> the branch.
        turns: number of iterations of a loop -> whether each iteration took place.
        plans: operations of a function, in order, by its name.
        dropped: calls of the user that the step leaves out, in order; see `body.dropped_call`.
        of_metrics: names of the operations whose values only the metrics of an evaluation read.
        constants: values that depend only on constants.
    """

    variables: dict[str, Variable]
    current: dict[str, SSAValue]
    seed: int
    mode: str
    global_step: SSAValue | None = None
    advances_global_step: bool = False
    written: set[str] = field(default_factory=set)
    branches: dict[SSAValue, int] = field(default_factory=dict)
    iterations: dict[SSAValue, tuple[SSAValue, ...]] = field(default_factory=dict)
    plans: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    dropped: dict[str, None] = field(default_factory=dict)
    of_metrics: frozenset[str] = frozenset()
    constants: Constants = field(init=False)

    def __post_init__(self) -> None:
        self.constants = Constants(self.global_step)


@dataclass(frozen=True)
class NodeContext:
    """One operation to import.

    Attributes:
        op: the tf.Operation.
        name: its name in the step, with the calls around it: different for every call of a function and every
            iteration of a loop.
        inputs: the values of its inputs.
        emit: appends ops to the step.
        step: the state of the step, changed by operations on variables.
        call: imports a function in place: (its name, arguments, name of this call in the step) -> results.
    """

    op: Any
    name: str
    inputs: Sequence[Value]
    emit: Emitter
    step: StepState
    call: Callable[[str, Sequence[Value], str], list[Value]]

    def x(self, position: int) -> SSAValue:
        """Return an input as a value of the IR; a known one becomes a constant."""
        value = self.inputs[position]
        if isinstance(value, SSAValue | np.ndarray):
            return self.as_value(value)
        tensor = self.op.inputs[position]
        if isinstance(value, Waiting):
            raise RefusedError(
                Kind.TYPE, f"its input {tensor.name} is {describe_tensor(tensor)}; cast it to tf.float32"
            )
        raise RefusedError(
            Kind.USAGE, f"its input {tensor.name} has no value on the device; no batch feeds it"
        )

    def as_value(self, value: Value) -> SSAValue:
        """Return a value as one of the IR; a known one becomes a constant."""
        if isinstance(value, SSAValue):
            return value
        if isinstance(value, np.ndarray):
            return self.emit.constant(value)
        raise RefusedError(Kind.USAGE, f"a {type(value).__name__} is not a tensor on the device")

    def rows(self, position: int) -> SSAValue:
        """`x`, for an operation that is right whatever padding the rows of the input have."""
        value = self.inputs[position]
        return value.value if isinstance(value, PaddedRows) else self.x(position)

    def all(self, start: int = 0, stop: int | None = None) -> list[SSAValue]:
        """Return several inputs as values of the IR."""
        return [self.x(i) for i in range(len(self.inputs))[start:stop]]

    def known(self, position: int) -> Array | None:
        """Return an input that is known while importing, else None."""
        value = self.inputs[position]
        return value if isinstance(value, np.ndarray) else None

    def constant(self, position: int) -> Array | None:
        """Return an input of any size that depends only on constants, or None; `known` has the small ones."""
        return self.step.constants.array(self.inputs[position])

    def static(self, position: int, what: str) -> Array:
        """Return an input that must be known; `what` is its name in the message."""
        value = self.constant(position)
        if value is None:
            raise RefusedError(
                Kind.SHAPE,
                f"its {what} ({self.op.inputs[position].name}) depends on data of the run; "
                "build it from Python numbers or static shapes",
            )
        return value

    def ints(self, position: int, what: str) -> list[int]:
        """Return a known input as a flat list of integers."""
        return [int(v) for v in self.static(position, what).reshape(-1)]

    def axis(self, position: int, what: str, rank: int) -> int:
        """Return a known scalar input as an axis, negative ones counted from the end."""
        (value,) = self.ints(position, what)
        return value + rank if value < 0 else value

    def shape(self, position: int) -> Shape:
        """Return the shape of an input; of a variable's handle the variable's."""
        value = self.inputs[position]
        if isinstance(value, SSAValue):
            return shape_of(value)
        if isinstance(value, Handle):
            return self.step.variables[value.key].shape
        if isinstance(value, np.ndarray):
            return tuple(value.shape)
        raise RefusedError(Kind.USAGE, f"input {self.op.inputs[position].name} has no shape")

    def attr(self, name: str) -> Any:
        """Return an attribute of the operation."""
        return self.op.get_attr(name)

    def out_dtype(self, position: int = 0) -> str:
        """Return the numpy name of the element type of an output on the device."""
        return narrow_dtype(str(self.op.outputs[position].dtype.base_dtype.name))

    def variable(self, position: int = 0) -> str:
        """Return the key of the variable of a handle input."""
        value = self.inputs[position]
        if not isinstance(value, Handle):
            raise RefusedError(
                Kind.USAGE, f"input {position} ({self.op.inputs[position].name}) is not a variable"
            )
        return value.key

    def read(self, position: int = 0) -> SSAValue:
        """Return the current value of the variable of a handle input."""
        return self.step.current[self.variable(position)]

    def write(self, position: int, value: SSAValue) -> None:
        """Replace the value of the variable of a handle input."""
        key = self.variable(position)
        variable = self.step.variables[key]
        if shape_of(value) != variable.shape:
            raise RefusedError(
                Kind.SHAPE,
                f"a value of shape {list(shape_of(value))} is assigned to variable {variable.name} "
                f"of shape {list(variable.shape)}; the shape of a variable cannot change",
            )
        self.step.current[key] = value
        self.step.written.add(key)


Handler: TypeAlias = Callable[[NodeContext], Result]
Table: TypeAlias = dict[str, Handler]
