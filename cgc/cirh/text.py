"""Text form of modules: parse, print, and the canonical text that artifacts are named by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind, StringLiteral

from cgc.cirh.base import ORIGIN, CirhOp
from cgc.cirh.dialect import CIRH
from cgc.cirh.printer import TextPrinter
from cgc.cirh.verify import verify_module
from cgc.errors import ModuleSyntaxError


def make_context() -> Context:
    """A context with the dialects that a module may use: builtin, func, cirh, and those of LAIR if needed."""
    context = Context()
    for dialect in (Builtin, Func, CIRH):
        context.load_dialect(dialect)
    for name in ("arith", "linalg", "math", "tensor"):
        context.register_dialect(name, partial(_lair_dialect, name))
    return context


def _lair_dialect(name: str) -> Dialect:
    from cgc.lair.dialect import LAIR_DIALECTS

    return LAIR_DIALECTS[name]


def parse_module(text: str, name: str = "<text>", *, verify: bool = True) -> ModuleOp:
    """Parses and verifies a module.

    Args:
        text: The module.
        name: File name for error messages.
        verify: Also check what no single op can: the order of definitions, the terminator. Ops are always
            checked.

    Raises:
        ModuleSyntaxError: starts with `name:line:column`.
        InvalidModuleError: the module as a whole is invalid.
    """
    _check_quotes(text, name)
    try:
        module = _Parser(make_context(), text, name).parse_module()
    except ParseError as error:
        start = _start_of_use(error, text)
        raise ModuleSyntaxError(_located(_with_hint(error.msg), start, text, name)) from error
    except RecursionError:
        raise ModuleSyntaxError(f"{name}: brackets are nested too deeply to be read") from None
    except (VerifyException, ValueError) as error:
        # raised by constructors of builtin attributes and types, which do not know the place
        raise ModuleSyntaxError(f"{name}: {error}") from error
    if verify:
        verify_module(module)
    return module


class _Lexer(MLIRLexer):
    """Takes escaped UTF-8 for text; xDSL's own lexer takes a string with such escapes for bytes."""

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
    """Finds a malformed string. On one, the regular expression of xDSL's lexer takes exponential time."""
    for match in _QUOTES.finditer(text):
        if match.group() == '"':
            message = r"this string does not end on its line, or has an escape other than \" \\ \n \t or \FF"
            raise ModuleSyntaxError(_located(message, match.start(), text, name))


def _with_hint(message: str) -> str:
    """The message of xDSL; of an op without definition, with the op of CIRH that may be meant."""
    unknown = re.fullmatch(r"Operation (\S+) is not registered", message)
    if unknown is None:
        return message
    mnemonics = {name.lower(): name for name in (op.name.removeprefix("cirh.") for op in CIRH.operations)}
    close = get_close_matches(unknown[1].removeprefix("cirh.").lower(), mnemonics, n=1)
    hint = f"; did you mean cirh.{mnemonics[close[0]]}?" if close else "; cgc-opt --list shows all ops"
    return f"unknown op {unknown[1]}{hint}"


def _start_of_use(error: ParseError, text: str) -> int:
    """Where the error is; xDSL reports values without a definition at the end of the text."""
    undefined = re.match(r"values used but not defined: \[(%[^\],]+)", error.msg)
    use = undefined and re.search(rf"{re.escape(undefined[1])}(?![\w$.-])", text)
    return use.start() if use else error.span.start


def _located(message: str, start: int, text: str, name: str) -> str:
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
    """The text of a module, ending in a newline; `parse_module` gives an equal module."""
    return _print(module, TextPrinter)


def canonical_text(module: ModuleOp) -> str:
    """The text that depends on nothing but what the module computes.

    Values are numbered in order of definition whatever their names, attributes are sorted, and where ops come
    from is left out.
    """
    return _print(module, CanonicalPrinter)


def _print(module: ModuleOp, printer_type: type[TextPrinter]) -> str:
    out = StringIO()
    printer_type(stream=out).print_op(module)
    return out.getvalue() + "\n"


class CanonicalPrinter(TextPrinter):
    """Prints without names, of values and of where ops come from."""

    def print_ssa_value(self, value: SSAValue) -> str:
        """Writes the number of a value."""
        name = self._ssa_values.get(value) or self.new_name(value)
        self.print_string(f"%{name}")
        return name

    def new_name(self, value: SSAValue) -> str:
        """The next number."""
        name = self._ssa_values[value] = self._get_new_valid_name_id()
        return name

    def _behind_operands(self, op: CirhOp) -> str:
        others = op.attributes
        if others.keys() <= ORIGIN:
            own, types = self._known_texts(op, op.properties)
            return f" {{{own}}}{types}" if own else types
        merged = op.properties | {name: value for name, value in others.items() if name not in ORIGIN}
        return f" {{{self.joined(dict(sorted(merged.items())))}}}{self._types_of(op)}"

    def _attributes_of(self, op: CirhOp) -> str:
        return self.joined(dict(sorted(op.properties.items())))

    def print_op_attributes(
        self,
        attributes: Mapping[str, Attribute],
        *,
        reserved_attr_names: Iterable[str] = (),
        print_keyword: bool = False,
    ) -> bool:
        """Writes what does not say where an op comes from."""
        return super().print_op_attributes(
            attributes,
            reserved_attr_names=ORIGIN.union(reserved_attr_names),
            print_keyword=print_keyword,
        )

    def print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        """Writes attributes in the order of their names."""
        super().print_attr_dict(dict(sorted(attr_dict.items())))
