"""Base of all CIRH ops: construction, text form, origin, attribute accessors."""

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
from cgc.cirh.types import Tensor, dtype_name, element_count, require_tensor, shape_of, tensor_of
from cgc.errors import InvalidOpError

# An operand of a constructor: a value, or an op with a single result.
Value: TypeAlias = SSAValue | Operation

# Names of the layers around an op from the outermost in, such as ("encoder", "0", "dense"); () for none.
LayerPath: TypeAlias = tuple[str, ...]

NODE_NAME = "cs.name"
SOURCE = "cs.source"
LAYER = "cs.layer"
# Discardable attributes with the origin of an op; they never change what a module computes.
ORIGIN = frozenset({NODE_NAME, SOURCE, LAYER})

# Attribute of an op that stays in float32 in a program with 16-bit precision.
FLOAT32 = "cs.float32"


# Constraints and defaults for the attributes of ops.
INT = IntegerAttr.constr(i64)
BOOLEAN = IntegerAttr.constr(i1)
FLOAT = FloatAttr.constr(f32)
INTS = DenseArrayBase.constr(i64)
FALSE = IntegerAttr(0, i1)


@lru_cache(maxsize=4096)
def int_attr(value: int) -> IntegerAttr:
    """Return `value : i64`."""
    return IntegerAttr(int(value), i64)


@cache
def bool_attr(value: bool) -> IntegerAttr:
    """Return `true` or `false`."""
    return IntegerAttr(int(value), i1)


def float_attr(value: float) -> FloatAttr:
    """Return `value : f32`."""
    return FloatAttr(float(value), f32)


@lru_cache(maxsize=4096)
def text_attr(text: str) -> StringAttr:
    """Return `"text"`; equal ones are usually one object, and are compared and printed as such."""
    return StringAttr(text)


def ints_attr(values: Iterable[int]) -> DenseArrayBase:
    """Return `array<i64: ...>`."""
    return _ints_attr(tuple(int(value) for value in values))


@lru_cache(maxsize=4096)
def _ints_attr(values: tuple[int, ...]) -> DenseArrayBase:
    return DenseArrayBase.from_list(i64, values)


@lru_cache(maxsize=4096)
def layer_attr(path: LayerPath) -> ArrayAttr[StringAttr]:
    """Return `["encoder", "dense"]`; the ops of a step share one object for each layer."""
    return ArrayAttr(map(StringAttr, path))


def is_layer_attr(attribute: Attribute) -> TypeGuard[ArrayAttr[StringAttr]]:
    """Return whether an attribute is an array of strings."""
    return isinstance(attribute, ArrayAttr) and all(isinstance(name, StringAttr) for name in attribute.data)


def operand_type(value: Value) -> Tensor:
    """Return the tensor type of an operand."""
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
        TRAITS: traits by which the passes and the kernel library decide.
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
        """Create an op without defaults and checks, in less than half the time of `create`.

        Args:
            operands: the operands.
            result_types: the types of the results.
            properties: all properties; no defaults are filled in.
            attributes: the discardable attributes.
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
        """The operands as a tuple, without the mutable view that `operands` makes each time."""
        return self._operands

    @abstractmethod
    def _infer_results(self) -> tuple[Tensor, ...]:
        """Return the result types that operands and attributes of this op imply."""

    @classmethod
    def infer_types(
        cls, operands: Sequence[SSAValue], properties: Mapping[str, Attribute]
    ) -> tuple[Tensor, ...]:
        """Return the result types of an op with these operands and properties."""
        op = cls.create(operands=operands, properties=dict(properties))
        types = op._infer_results()
        op.erase()
        return types

    def verify_(self) -> None:
        """Check the result types against the op's own rule; called after the IRDL constraints."""
        unknown = [name for name in self.attributes if "." not in name]
        if unknown:
            own = ", ".join(attribute_names(type(self))) or "none"
            self.fail(f"unknown attribute {unknown[0]!r}, expected {own}, or a name with a dot in it")
        if (layer := self.attributes.get(LAYER)) is not None and not is_layer_attr(layer):
            self.fail(f"{LAYER} is {layer}, expected an array of strings, the layers from the outermost in")
        for value in (*self.operands, *self.results):
            try:
                require_tensor(value.type)
            except InvalidOpError as error:
                raise InvalidOpError(f"{self.name}: {error}") from None
        expected = self._infer_results()
        declared = tuple(result.type for result in self.results)
        if declared != expected:
            self.fail(f"result type is {_type_list(declared)}, expected {_type_list(expected)}")

    @classmethod
    def fail(cls, message: str) -> NoReturn:
        """Raise InvalidOpError with the op's name before the message."""
        raise InvalidOpError(f"{cls.name}: {message}")

    @classmethod
    def require_dtype(cls, what: str, tensor: Tensor, allowed: frozenset[str]) -> None:
        """Check the element type of an operand; `what` is its name in the message."""
        if dtype_name(tensor) not in allowed:
            cls.fail(f"{what} has type {tensor}, expected an element type of {', '.join(sorted(allowed))}")

    @classmethod
    def require_same(cls, what: str, got: Attribute, other: str, expected: Attribute) -> None:
        """Check that two operands have one type."""
        if got != expected:
            cls.fail(f"{what} has type {got}, expected {expected}, the type of {other}")

    @classmethod
    def require_scalar(cls, what: str, got: Tensor, like: Tensor | None = None) -> None:
        """Check for rank 0 and, with `like`, for the element type of `like`."""
        if got.get_shape():
            cls.fail(f"{what} has type {got}, expected rank 0")
        if like is not None and got.element_type != like.element_type:
            cls.fail(f"{what} has type {got}, expected element type {like.element_type}")

    @classmethod
    def require_axis(cls, axis: int, rank: int) -> None:
        """Check that 0 <= axis < rank."""
        if not 0 <= axis < rank:
            cls.fail(f"axis is {axis}, expected 0 <= axis < {rank}, the rank")

    @property
    def work(self) -> Work:
        """Work of each kind on each of `worked_elements`."""
        return self.TRAITS.work

    def worked_elements(self) -> int:
        """Return the number of elements that the work is done on.

        This is the size of the largest result, and of the largest operand where an element comes from many. A
        sort visits the elements once for each doubling of the sorted runs, a scatter visits its updates.
        """
        if self.TRAITS.order is Order.SCATTERS:
            return element_count(tensor_of(self.operands[-1]))
        if self.TRAITS.order is Order.SORTS:
            last = (shape_of(self.operands[0]) or (1,))[-1]
            return element_count(tensor_of(self.operands[0])) * max(1, (last - 1).bit_length())
        values = [*self.results, *(self.operands if self.TRAITS.elements is Elements.MIXED else ())]
        return self.stages() * max((element_count(tensor_of(value)) for value in values), default=0)

    def stages(self) -> int:
        """Return the number of times that an op of `Order.STAGES` visits all elements in sequence."""
        return 1

    def row_reductions(self) -> int:
        """Return the number of sums and maxima along a row of a sample; none for sums over samples only."""
        return 0

    def sample_operands(self) -> Sequence[SSAValue]:
        """Return the operands whose samples the results have."""
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
        """The layer of this op, and for a gradient op that of its forward op (`cs.layer`)."""
        return _path(self.attributes.get(LAYER))

    def set_origin(
        self, node_name: str | None = None, source: str | None = None, layer: LayerPath | None = None
    ) -> Self:
        """Set the origin of the op and return it; None leaves a part as it is."""
        if node_name is not None:
            self.attributes[NODE_NAME] = StringAttr(node_name)
        if source is not None:
            self.attributes[SOURCE] = text_attr(source)
        if layer is not None:
            self.attributes[LAYER] = layer_attr(layer)
        return self

    def take_origin(self, other: CirhOp) -> Self:
        """Copy the origin of another op and return this op."""
        for name in (ORIGIN | {FLOAT32}) & other.attributes.keys():
            self.attributes[name] = other.attributes[name]
        return self

    def print(self, printer: Printer) -> None:
        """Print `%a, %b {attributes} : (types) -> types`."""
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
        """Parse the text form and check the op, so that a type error is reported at its position."""
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
    """Return the layers of ops in order, each with the number of consecutive ops in it."""
    return [(path, len(list(run))) for path, run in groupby(layer_paths(ops))]


def set_quick_accessors(op_type: type[CirhOp]) -> None:
    """Replace accessors such as `op.lhs` by faster ones."""
    # They take a quarter of the time of xDSL's: passes read each op some hundred times.
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
    """Return the name of an op without that of the dialect: "MatMul"."""
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
