"""Text form of modules: parse, print, and the canonical text that names artifacts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property, lru_cache
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import (
    Builtin,
    DenseArrayBase,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
    i1,
    i64,
)
from xdsl.dialects.func import Func
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind, StringLiteral

from cgc.cirh.base import ORIGIN, CirhOp, attribute_names, is_layer_attr
from cgc.cirh.module import verify_module
from cgc.cirh.ops import CIRH
from cgc.errors import ModuleSyntaxError


def make_context(dialects: Iterable[Dialect] = ()) -> Context:
    """Return a context with builtin, func, cirh, and other dialects."""
    context = Context()
    for dialect in (Builtin, Func, CIRH, *dialects):
        context.load_dialect(dialect)
    return context


def parse_module(
    text: str, name: str = "<text>", *, verify: bool = True, dialects: Iterable[Dialect] = ()
) -> ModuleOp:
    """Parse and verify a module.

    Args:
        text: the module.
        name: file name for error messages.
        verify: also check the order of definitions and the terminator. Ops are always checked.
        dialects: the dialects of its ops other than builtin, func and cirh.

    Raises:
        ModuleSyntaxError: starts with `name:line:column`.
        InvalidModuleError: the module as a whole is invalid.
    """
    _check_quotes(text, name)
    try:
        module = _Parser(make_context(dialects), text, name).parse_module()
    except ParseError as error:
        # xDSL reports undefined values at the end of the text.
        undefined = re.match(r"values used but not defined: \[(%[^\],]+)", error.msg)
        use = undefined and re.search(rf"{re.escape(undefined[1])}(?![\w$.-])", text)
        start = use.start() if use else error.span.start
        raise ModuleSyntaxError(_with_location(_with_hint(error.msg), start, text, name)) from error
    except RecursionError:
        raise ModuleSyntaxError(f"{name}: brackets are nested too deeply to be read") from None
    except (VerifyException, ValueError) as error:
        # raised by constructors of builtin attributes and types, which do not know the place
        raise ModuleSyntaxError(f"{name}: {error}") from error
    if verify:
        verify_module(module)
    return module


class _Lexer(MLIRLexer):
    """A lexer that reads escaped UTF-8 as text; xDSL's lexer reads strings with such escapes as bytes."""

    def _lex_string_literal(self, start_pos: int) -> Token[MLIRTokenKind]:
        token = super()._lex_string_literal(start_pos)
        if token.kind is not MLIRTokenKind.BYTES_LIT or not isinstance(token.span, StringLiteral):
            return token
        try:
            token.span.bytes_contents.decode()
        except UnicodeDecodeError:
            return token
        return Token(MLIRTokenKind.STRING_LIT, token.span)


class _Parser(Parser):
    def __init__(self, context: Context, text: str, name: str) -> None:
        super().__init__(context, text, name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))


_QUOTES = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"|//[^\n]*+|"')


def _check_quotes(text: str, name: str) -> None:
    """Find a malformed string."""
    # On one, the regular expression of xDSL's lexer takes exponential time.
    for match in _QUOTES.finditer(text):
        if match.group() == '"':
            message = r"this string does not end on its line, or has an escape other than \" \\ \n \t or \FF"
            raise ModuleSyntaxError(_with_location(message, match.start(), text, name))


def _with_hint(message: str) -> str:
    """Return the message of xDSL, and for an unknown op the op of CIRH that may be meant."""
    unknown = re.fullmatch(r"Operation (\S+) is not registered", message)
    if unknown is None:
        return message
    mnemonics = {name.lower(): name for name in (op.name.removeprefix("cirh.") for op in CIRH.operations)}
    close = get_close_matches(unknown[1].removeprefix("cirh.").lower(), mnemonics, n=1)
    hint = f"; did you mean cirh.{mnemonics[close[0]]}?" if close else "; cgc-opt --list shows all ops"
    return f"unknown op {unknown[1]}{hint}"


def _with_location(message: str, start: int, text: str, name: str) -> str:
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    number, column = text.count("\n", 0, start) + 1, start - line_start + 1
    # only what surrounds the place: the line may hold megabytes of a constant
    first = max(0, column - 1 - _SHOWN_BEFORE)
    shown = line[first : first + _SHOWN_WIDTH]
    return f"{name}:{number}:{column}: {message}\n    {shown}\n    {' ' * (column - 1 - first)}^"


_SHOWN_BEFORE, _SHOWN_WIDTH = 80, 160


def print_module(module: ModuleOp) -> str:
    """Return the text of a module, ending in a newline; `parse_module` gives an equal module."""
    return _print(module, TextPrinter)


def canonical_text(module: ModuleOp) -> str:
    """Return the text that depends only on what the module computes.

    Values are numbered in order of definition whatever their names, attributes are sorted, and origins are
    left out.
    """
    return _print(module, CanonicalPrinter)


def _print(module: ModuleOp, printer_type: type[TextPrinter]) -> str:
    out = StringIO()
    printer_type(stream=out).print_op(module)
    return out.getvalue() + "\n"


# All bytes but printable ASCII without quote and backslash.
_ESCAPED = re.compile(rb"[^ !#-\[\]-~]")


# xDSL writes a string letter by letter, and a type or a list piece by piece, each through `print`. A step has
# a node name and a source line on every op, and a few hundred different types and layers. With the slow parts
# in one piece, a step of 4,000 ops prints in a third of the time.
class TextPrinter(Printer):
    """A faster `Printer` with the same output."""

    @cached_property
    def _texts(self) -> dict[int, tuple[Attribute, str]]:
        """Tensor types and layers with their texts, by identity: hashing takes longer."""
        return {}

    @cached_property
    def _known_ops(self) -> dict[tuple[object, ...], tuple[tuple[str, str], CirhOp]]:
        """Results of `_known_texts`."""
        return {}

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        """Write text; only text with line ends needs xDSL's handling of indentation."""
        if "\n" in text or self.stream is None:
            super().print_string(text, indent=indent)
        else:
            self._current_column += len(text)
            self.stream.write(text)

    def _print_new_line(self, indent: int | None = None, print_message: bool = True) -> None:
        if self._next_line_callback or self.stream is None:
            super()._print_new_line(indent, print_message)
            return
        spaces = self.indent_num_spaces * (self._indent if indent is None else indent)
        self.stream.write("\n" + " " * spaces)
        self._current_line += 1
        self._current_column = spaces

    def print_op(self, op: Operation) -> None:
        """Write an op; one of CIRH with the usual text in one piece."""
        if not isinstance(op, CirhOp) or not self._is_usual(op):
            super().print_op(op)
            return
        names, read = self._ssa_values, op.operand_values
        results = ", ".join([f"%{names.get(value) or self.new_name(value)}" for value in op.results])
        operands = ", ".join([f"%{names.get(value) or self.new_name(value)}" for value in read])
        space = " " if operands else ""
        self.print_string(f"{results} = {op.name}{space}{operands}{self._text_after_operands(op)}")

    def _text_after_operands(self, op: CirhOp) -> str:
        """Return attributes and types; the text of own attributes and types is cached."""
        own, types = self._known_texts(op, op.properties)
        others = [self._named_attribute(name, op.attributes[name]) for name in sorted(op.attributes)]
        parts = ", ".join([own, *others] if own else others)
        return f" {{{parts}}}{types}" if parts else types

    def _known_texts(self, op: CirhOp, attributes: Mapping[str, Attribute]) -> tuple[str, str]:
        """Return (attributes without braces, types), cached by the identity of the objects."""
        key = (
            type(op),
            *attributes,
            *map(id, attributes.values()),
            *[id(value.type) for value in op.operand_values],
            *[id(value.type) for value in op.results],
        )
        known = self._known_ops.get(key)
        if known is None:
            texts = self._attributes_of(op), self._types_of(op)
            # The op is kept, so that nothing else gets the identities of what it has.
            known = self._known_ops[key] = texts, op
        return known[0]

    def _attributes_of(self, op: CirhOp) -> str:
        """Return the own attributes of an op, in their order of definition."""
        names = [name for name in attribute_names(type(op)) if name in op.properties]
        return self.join_attributes({name: op.properties[name] for name in names})

    def _types_of(self, op: CirhOp) -> str:
        types = [[value.type for value in values] for values in (op.operand_values, op.results)]
        inputs, outputs = ([self.attribute_text(kind) for kind in kinds] for kinds in types)
        results = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
        return f" : ({', '.join(inputs)}) -> {results}"

    def _is_usual(self, op: CirhOp) -> bool:
        has_own_text = type(op).print is not CirhOp.print or not op.results
        return not (
            has_own_text or self.print_generic_format or self.print_debuginfo or self.diagnostic.op_messages
        )

    def new_name(self, value: SSAValue) -> str:
        """Name a value that has no name yet."""
        hint = value.name_hint
        if not hint:
            name = self._get_new_valid_name_id()
        else:
            count = self.ssa_names.get(hint, 0)
            self.ssa_names[hint] = count + 1
            name = f"{hint}_{count}" if count else hint
        self._ssa_values[value] = name
        return name

    def print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        """Write attributes in braces, in one piece."""
        self.print_string(f"{{{self.join_attributes(attr_dict)}}}")

    def join_attributes(self, attributes: Mapping[str, Attribute]) -> str:
        """Return attributes as they are written in braces."""
        return ", ".join([self._named_attribute(*item) for item in attributes.items()])

    def _named_attribute(self, name: str, attribute: Attribute) -> str:
        value = self.attribute_text(attribute)
        return f"{_name_text(name)} = {value}" if value else _name_text(name)

    def attribute_text(self, attribute: Attribute) -> str:
        """Return the text of an attribute; empty for a unit attribute."""
        if type(attribute) is StringAttr:
            return _string(attribute.data)
        if (known := self._texts.get(id(attribute))) is not None:
            return known[1]
        match attribute:
            case IntegerAttr() if attribute.type == i64:
                return f"{attribute.value.data} : i64"
            case IntegerAttr() if attribute.type == i1:
                return "true" if attribute.value.data else "false"
            case DenseArrayBase() if attribute.elt_type == i64:
                values = ", ".join(map(str, attribute.get_values()))
                return f"array<i64: {values}>" if values else "array<i64>"
            case UnitAttr():
                return ""
        if isinstance(attribute, TensorType) or is_layer_attr(attribute):
            return self._text_of(attribute)
        return _print_attribute(attribute)

    def print_bytes_literal(self, bytestring: bytes) -> None:
        """Write a string in quotes."""
        self.print_string(_quote(bytestring))

    def print_attribute(self, attribute: Attribute) -> None:
        """Write an attribute; the text of a tensor type, or of a layer, is cached."""
        if id(attribute) in self._texts or isinstance(attribute, TensorType) or is_layer_attr(attribute):
            self.print_string(self._text_of(attribute))
        else:
            super().print_attribute(attribute)

    def print_function_type(
        self, input_types: Iterable[Attribute], output_types: Iterable[Attribute]
    ) -> None:
        """Write `(types) -> type`; tensor types in one piece."""
        inputs, outputs = tuple(input_types), tuple(output_types)
        if not all(isinstance(kind, TensorType) for kind in (*inputs, *outputs)):
            super().print_function_type(inputs, outputs)
            return
        results = ", ".join(map(self._text_of, outputs))
        if len(outputs) != 1:
            results = f"({results})"
        self.print_string(f"({', '.join(map(self._text_of, inputs))}) -> {results}")

    def _text_of(self, attribute: Attribute) -> str:
        known = self._texts.get(id(attribute))
        if known is None:
            known = self._texts[id(attribute)] = attribute, _text(attribute)
        return known[1]


class CanonicalPrinter(TextPrinter):
    """Prints without names of values and without origins."""

    def print_ssa_value(self, value: SSAValue) -> str:
        """Write the number of a value."""
        name = self._ssa_values.get(value) or self.new_name(value)
        self.print_string(f"%{name}")
        return name

    def new_name(self, value: SSAValue) -> str:
        """Return the next number."""
        name = self._ssa_values[value] = self._get_new_valid_name_id()
        return name

    def _text_after_operands(self, op: CirhOp) -> str:
        others = op.attributes
        if others.keys() <= ORIGIN:
            own, types = self._known_texts(op, op.properties)
            return f" {{{own}}}{types}" if own else types
        merged = op.properties | {name: value for name, value in others.items() if name not in ORIGIN}
        return f" {{{self.join_attributes(dict(sorted(merged.items())))}}}{self._types_of(op)}"

    def _attributes_of(self, op: CirhOp) -> str:
        return self.join_attributes(dict(sorted(op.properties.items())))

    def print_op_attributes(
        self,
        attributes: Mapping[str, Attribute],
        *,
        reserved_attr_names: Iterable[str] = (),
        print_keyword: bool = False,
    ) -> bool:
        """Write all attributes but the origin."""
        return super().print_op_attributes(
            attributes,
            reserved_attr_names=ORIGIN.union(reserved_attr_names),
            print_keyword=print_keyword,
        )

    def print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        """Write attributes in the order of their names."""
        super().print_attr_dict(dict(sorted(attr_dict.items())))


def _string(text: str) -> str:
    # Almost every text is of this kind, and most names of nodes are printed once.
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return _quote(text.encode())


def _quote(text: bytes) -> str:
    return f'"{_ESCAPED.sub(_escape, text).decode("ascii")}"'


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()
    return b"\\\\" if byte == b"\\" else b"\\%02X" % byte[0]


@lru_cache(maxsize=4096)
def _text(attribute: Attribute) -> str:
    if is_layer_attr(attribute):
        return f"[{', '.join([_string(name.data) for name in attribute.data])}]"
    return _print_attribute(attribute)


def _print_attribute(attribute: Attribute) -> str:
    out = StringIO()
    Printer(stream=out).print_attribute(attribute)
    return out.getvalue()


@lru_cache(maxsize=4096)
def _name_text(name: str) -> str:
    """Return the name of an attribute, in quotes where it is no identifier."""
    out = StringIO()
    Printer(stream=out).print_identifier_or_string_literal(name)
    return out.getvalue()
