"""What all CIRH ops share: construction, the text form, where an op comes from, attribute accessors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, ClassVar, NoReturn, Self, TypeAlias, TypeGuard, overload

from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    f32,
    i1,
    i64,
)
from xdsl.ir import Attribute, Operation, OpResult, SSAValue, SSAValues, Use
from xdsl.irdl import IRDLOperation, traits_def
from xdsl.irdl.operations import BeforeVariadicSingleAccessor, VarIRConstruct
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from cgc.cirh.traits import Elements, OpTraits, Order, Samples, Work
from cgc.cirh.types import Tensor, checked_tensor, dtype_name, element_count, shape_of, tensor_of
from cgc.errors import InvalidOpError

Value: TypeAlias = SSAValue | Operation
"""What constructors take as an operand: a value, or an op with a single result."""

LayerPath: TypeAlias = tuple[str, ...]
"""Names of the layers around an op from the outermost in, such as ("encoder", "0", "dense"); () for none."""

NODE_NAME = "cs.name"
SOURCE = "cs.source"
LAYER = "cs.layer"
ORIGIN = frozenset({NODE_NAME, SOURCE, LAYER})
"""Discardable attributes that say where an op comes from; they never change what a module computes."""

FLOAT32 = "cs.float32"
"""Attribute of an op that a program wants in float32 where others are computed in 16 bits."""


INT = IntegerAttr.constr(i64)
BOOLEAN = IntegerAttr.constr(i1)
FLOAT = FloatAttr.constr(f32)
INTS = DenseArrayBase.constr(i64)
FALSE = IntegerAttr(0, i1)
"""Constraints and defaults for the attributes of ops."""


@lru_cache(maxsize=4096)
def int_attr(value: int) -> IntegerAttr:
    """`value : i64`; a step has few different ones."""
    return IntegerAttr(int(value), i64)


@cache
def bool_attr(value: bool) -> IntegerAttr:
    """`true` or `false`."""
    return IntegerAttr(int(value), i1)


def float_attr(value: float) -> FloatAttr:
    """`value : f32`."""
    return FloatAttr(float(value), f32)


@lru_cache(maxsize=4096)
def text_attr(text: str) -> StringAttr:
    """`"text"`; equal ones are mostly one object, and are compared and printed as such."""
    return StringAttr(text)


def ints_attr(values: Iterable[int]) -> DenseArrayBase:
    """`array<i64: ...>`."""
    return _ints_attr(tuple(int(value) for value in values))


@lru_cache(maxsize=4096)
def _ints_attr(values: tuple[int, ...]) -> DenseArrayBase:
    return DenseArrayBase.from_list(i64, values)


@lru_cache(maxsize=4096)
def layer_attr(path: LayerPath) -> ArrayAttr[StringAttr]:
    """`["encoder", "dense"]`; the thousands of ops of a step share one object for each of their layers."""
    return ArrayAttr(map(StringAttr, path))


def is_layer_attr(attribute: Attribute) -> TypeGuard[ArrayAttr[StringAttr]]:
    """Return whether an attribute is an array of strings."""
    return isinstance(attribute, ArrayAttr) and all(isinstance(name, StringAttr) for name in attribute.data)


def operand_type(value: Value) -> Tensor:
    """Return the tensor type of what a constructor takes as an operand."""
    return tensor_of(SSAValue.get(value))


class IntParameter(property):
    """Reads an integer attribute of an op as a Python int."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda op: op.properties[name].value.data)

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None, /) -> int: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> int | Self:
        value: int | Self = super().__get__(instance, owner)
        return value


class BoolParameter(property):
    """Reads an i1 attribute of an op as a Python bool."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda op: bool(op.properties[name].value.data))

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None, /) -> bool: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> bool | Self:
        value: bool | Self = super().__get__(instance, owner)
        return value


class FloatParameter(property):
    """Reads an f32 attribute of an op as a Python float."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda op: op.properties[name].value.data)

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None, /) -> float: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> float | Self:
        value: float | Self = super().__get__(instance, owner)
        return value


class TextParameter(property):
    """Reads a string attribute of an op as a Python str."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda op: op.properties[name].data)

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None, /) -> str: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> str | Self:
        value: str | Self = super().__get__(instance, owner)
        return value


class IntsParameter(property):
    """Reads an `array<i64: ...>` attribute of an op as a tuple of Python ints."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda op: op.properties[name].get_values())

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None, /) -> tuple[int, ...]: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> tuple[int, ...] | Self:
        value: tuple[int, ...] | Self = super().__get__(instance, owner)
        return value


class CirhOp(IRDLOperation, ABC):
    """Base of all ops: pure, statically shaped, one text form.

    Every concrete op has a constructor that infers the result types, a classmethod `infer` with the shape and
    type rule, and checks itself against that rule in `verify_`. Attributes of the op are properties of the IR
    and are read as Python values (`op.transpose_a -> bool`).

    Attributes:
        TRAITS: what the passes and the kernel library ask of the op, see `cgc.cirh.traits`.
    """

    TRAITS: ClassVar[OpTraits]
    traits = traits_def(Pure())

    def __init__(
        self,
        operands: Sequence[Value],
        result_types: Sequence[Tensor],
        properties: Mapping[str, Attribute] | None = None,
    ) -> None:
        # IRDLOperation.__init__ sorts operands into segments; ours are flat, and building is faster without.
        Operation.__init__(
            self,
            operands=[SSAValue.get(operand) for operand in operands],
            result_types=result_types,
            properties=properties or {},
        )

    @classmethod
    def create_unchecked(
        cls,
        operands: Sequence[SSAValue],
        result_types: Iterable[Attribute],
        properties: Mapping[str, Attribute],
        attributes: Mapping[str, Attribute],
    ) -> Self:
        """What `create` makes, in less than half the time: copies of deep steps are made of thousands of ops.

        Args:
            operands: of the op.
            result_types: of the op.
            properties: all of them; it fills in no defaults.
            attributes: the discardable ones.
        """
        op = cls.__new__(cls)
        uses = tuple([Use(op, index) for index in range(len(operands))])
        for operand, use in zip(operands, uses, strict=True):
            operand.add_use(use)
        op._operands, op._operand_uses = SSAValues(operands), uses
        op.results = SSAValues([OpResult(kind, op, index) for index, kind in enumerate(result_types)])
        op.properties, op.attributes, op.location = dict(properties), dict(attributes), UNKNOWN_LOC
        return op

    @property
    def operand_values(self) -> tuple[SSAValue, ...]:
        """The operands, without the view that `operands` makes each time for whoever wants to change them."""
        return self._operands

    @abstractmethod
    def _infer_results(self) -> tuple[Tensor, ...]:
        """Return the result types that operands and attributes of this op imply."""

    @classmethod
    def infer_types(
        cls, operands: Sequence[SSAValue], properties: Mapping[str, Attribute]
    ) -> tuple[Tensor, ...]:
        """Return the result types of such an op, where operands and attributes alone say them."""
        op = cls.create(operands=operands, properties=dict(properties))
        types = op._infer_results()
        op.erase()
        return types

    def verify_(self) -> None:
        """Checks the result types against the op's own rule; called after the IRDL constraints."""
        unknown = [name for name in self.attributes if "." not in name]
        if unknown:
            own = ", ".join(attribute_names(type(self))) or "none"
            self.fail(f"unknown attribute {unknown[0]!r}, expected {own}, or a name with a dot in it")
        if (layer := self.attributes.get(LAYER)) is not None and not is_layer_attr(layer):
            self.fail(f"{LAYER} is {layer}, expected an array of strings, the layers from the outermost in")
        for value in (*self.operands, *self.results):
            self._check_tensor(value.type)
        expected = self._infer_results()
        declared = tuple(result.type for result in self.results)
        if declared != expected:
            self.fail(f"result type is {_type_list(declared)}, expected {_type_list(expected)}")

    def _check_tensor(self, attribute: Attribute) -> None:
        try:
            checked_tensor(attribute)
        except InvalidOpError as error:
            raise InvalidOpError(f"{self.name}: {error}") from None

    @classmethod
    def fail(cls, message: str) -> NoReturn:
        """Raises InvalidOpError with the op's name before the message."""
        raise InvalidOpError(f"{cls.name}: {message}")

    @classmethod
    def require_dtype(cls, what: str, tensor: Tensor, allowed: frozenset[str]) -> None:
        """Checks the element type of an operand; `what` is its name in the message."""
        if dtype_name(tensor) not in allowed:
            cls.fail(f"{what} has type {tensor}, expected an element type of {', '.join(sorted(allowed))}")

    @classmethod
    def require_same(cls, what: str, got: Attribute, other: str, expected: Attribute) -> None:
        """Checks that two operands have one type."""
        if got != expected:
            cls.fail(f"{what} has type {got}, expected {expected}, the type of {other}")

    @classmethod
    def require_scalar(cls, what: str, got: Tensor, like: Tensor | None = None) -> None:
        """Checks for rank 0 and, with `like`, for the element type of `like`."""
        if got.get_shape():
            cls.fail(f"{what} has type {got}, expected rank 0")
        if like is not None and got.element_type != like.element_type:
            cls.fail(f"{what} has type {got}, expected element type {like.element_type}")

    @classmethod
    def require_axis(cls, axis: int, rank: int) -> None:
        """Checks that 0 <= axis < rank."""
        if not 0 <= axis < rank:
            cls.fail(f"axis is {axis}, expected 0 <= axis < {rank}, the rank")

    @property
    def work(self) -> Work:
        """How often each of `worked_elements` needs each kind of work."""
        return self.TRAITS.work

    def worked_elements(self) -> int:
        """Elements that the work is done on.

        Those of the largest result, and of the largest operand where an element comes from many. A sort
        visits them once for each doubling of the sorted runs, a scatter visits its updates.
        """
        if self.TRAITS.order is Order.SCATTERS:
            return element_count(tensor_of(self.operands[-1]))
        if self.TRAITS.order is Order.SORTS:
            last = (shape_of(self.operands[0]) or (1,))[-1]
            return element_count(tensor_of(self.operands[0])) * max(1, (last - 1).bit_length())
        values = [*self.results, *(self.operands if self.TRAITS.elements is Elements.MIXED else ())]
        return self.stages() * max((element_count(tensor_of(value)) for value in values), default=0)

    def stages(self) -> int:
        """Number of times that an op of `Order.STAGES` visits all elements, each after the one before."""
        return 1

    def row_reductions(self) -> int:
        """Sums and maxima along a row of a sample that the op takes; over samples alone there is none."""
        return 0

    def sample_operands(self) -> Sequence[SSAValue]:
        """Return the operands whose samples the results have, see `Samples`."""
        return () if self.TRAITS.samples in (Samples.SUMMED, Samples.NONE) else self.operands

    @property
    def node_name(self) -> str | None:
        """The framework's name for the node this op comes from, if known (`cs.name`)."""
        return _text(self.attributes.get(NODE_NAME))

    @property
    def source(self) -> str | None:
        """The user's source line as "file:line", if known (`cs.source`)."""
        return _text(self.attributes.get(SOURCE))

    @property
    def layer(self) -> LayerPath:
        """The layer that this op belongs to, a gradient op to that of its forward op (`cs.layer`)."""
        return _path(self.attributes.get(LAYER))

    def set_origin(
        self, node_name: str | None = None, source: str | None = None, layer: LayerPath | None = None
    ) -> Self:
        """Says where the op comes from and returns it; None leaves what is there."""
        if node_name is not None:
            self.attributes[NODE_NAME] = StringAttr(node_name)
        if source is not None:
            self.attributes[SOURCE] = text_attr(source)
        if layer is not None:
            self.attributes[LAYER] = layer_attr(layer)
        return self

    def take_origin(self, other: CirhOp) -> Self:
        """Says that the op comes from where another does, and returns it."""
        for name in (ORIGIN | {FLOAT32}) & other.attributes.keys():
            self.attributes[name] = other.attributes[name]
        return self

    def print(self, printer: Printer) -> None:
        """Prints `%a, %b {attributes} : (types) -> types`."""
        if self.operands:
            printer.print_string(" ")
            printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.ordered_attributes())
        printer.print_string(" : ")
        printer.print_function_type(self.operand_types, self.result_types)

    def ordered_attributes(self) -> dict[str, Attribute]:
        """Return the op's own attributes in their order of definition, then the discardable ones by name."""
        merged = {
            name: self.properties[name] for name in attribute_names(type(self)) if name in self.properties
        }
        merged.update(sorted(self.attributes.items()))
        return merged

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parses the text form and checks the op, so that a type error is reported where it stands."""
        start = parser.pos
        names = _parse_operand_list(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types_at = parser.pos
        signature = parser.parse_function_type()
        end = parser.pos
        own = set(attribute_names(cls))
        op = cls.create(
            operands=parser.resolve_operands(names, signature.inputs.data, types_at),
            result_types=signature.outputs.data,
            properties={name: value for name, value in attributes.items() if name in own},
            attributes={name: value for name, value in attributes.items() if name not in own},
        )
        try:
            op.verify_()
        except VerifyException as error:
            parser.raise_error(str(error), start, end)
        return op


def layer_paths(ops: Iterable[CirhOp]) -> list[LayerPath]:
    """Return the layers of ops; ops of a step share few attributes, each of which is read once."""
    layers = [op.attributes.get(LAYER) for op in ops]
    paths = {key: _path(layer) for key, layer in {id(layer): layer for layer in layers}.items()}
    return [paths[id(layer)] for layer in layers]


def layer_runs(ops: Iterable[CirhOp]) -> list[tuple[LayerPath, int]]:
    """Return the layers of ops in order, each with how many ops have it in a row."""
    return [(path, len(list(run))) for path, run in groupby(layer_paths(ops))]


def set_quick_accessors(op_type: type[CirhOp]) -> None:
    """Lets `op.lhs` take a quarter of the time that it takes xDSL: passes ask some hundred times an op."""
    for name, accessor in tuple(vars(op_type).items()):
        if isinstance(accessor, BeforeVariadicSingleAccessor):
            setattr(op_type, name, _quick_accessor(accessor))


def _quick_accessor(accessor: BeforeVariadicSingleAccessor) -> Any:
    index, item = accessor.idx, tuple.__getitem__
    match accessor.construct:
        case VarIRConstruct.OPERAND:
            return property(lambda op: item(op._operands, index))
        case VarIRConstruct.RESULT:
            return property(lambda op: item(op.results, index))
    return accessor


def mnemonic(op_type: type[CirhOp]) -> str:
    """Return the name of an op without that of the dialect, "MatMul"."""
    return op_type.name.removeprefix("cirh.")


def attribute_names(op_type: type[CirhOp]) -> tuple[str, ...]:
    """Return the names of an op's own attributes, in their order of definition."""
    names = _ATTRIBUTE_NAMES.get(op_type)
    if names is None:
        names = _ATTRIBUTE_NAMES[op_type] = tuple(op_type.get_irdl_definition().properties)
    return names


_ATTRIBUTE_NAMES: dict[type[CirhOp], tuple[str, ...]] = {}


def _parse_operand_list(parser: Parser) -> list[UnresolvedOperand]:
    first = parser.parse_optional_unresolved_operand()
    if first is None:
        return []
    operands = [first]
    while parser.parse_optional_punctuation(",") is not None:
        operands.append(parser.parse_unresolved_operand())
    return operands


def _path(layer: Attribute | None) -> LayerPath:
    return tuple([name.data for name in layer.data]) if isinstance(layer, ArrayAttr) else ()


def _text(attribute: Attribute | None) -> str | None:
    return attribute.data if isinstance(attribute, StringAttr) else None


def _type_list(types: Sequence[Attribute]) -> str:
    return str(types[0]) if len(types) == 1 else f"({', '.join(map(str, types))})"
