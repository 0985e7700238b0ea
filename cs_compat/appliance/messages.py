"""Messages and enumerations of the original stack: kept for the program to read, without effect here.

Files of debug arguments are in protobuf's text format: `field: value`, and `field { ... }` for a message.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cs_toolkit.messages import Message

# Number formats.
T_F16 = 1
T_CB16 = 2

# Switches that can be left open.
TS_DISABLED = 1
TS_ENABLED = 2

# When kernels are generated instead of matched. The toolkit always generates those that it lacks.
AP_DISABLED = 1
AP_ENABLED = 2


class FullConfig(Message):
    """Options for every stage of the original compiler; kept for the program to read, without effect here."""


class CSConfig(Message):
    """Options of a run.

    Args:
        use_cbfloat16: Compute activations and gradients in cbfloat16.
        **fields: Other options; kept for the program to read, without effect here.
    """

    def __init__(self, use_cbfloat16: bool = False, **fields: Any) -> None:
        super().__init__(use_cbfloat16=use_cbfloat16, **fields)


class DebugArgs(Message):
    """Debug arguments of a run."""

    class DebugINI(Message):
        """Settings of the original's compiler as the text of a file."""

    class DebugMGR(Message):
        """Settings of the original's cluster management."""

        class CleanPodPolicy:
            """Which servers are removed after a run."""

            ALL = 1
            RUNNING = 2
            NONE = 3


class ExecutionStrategy:
    """Execution modes of a step."""

    ES_PIPELINE = 1
    ES_WEIGHT_STREAMING = 2


def get_debug_args(value: Any) -> Message:
    """Return debug arguments: empty ones for None, given ones as they are, else those in a file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not in protobuf's text format.
    """
    if isinstance(value, Message):
        return value
    debug_args = DebugArgs()
    if value is not None:
        path = Path(os.fspath(value))
        try:
            _fill(debug_args, _Tokens(path.read_text(), path))
        except RecursionError:
            raise ValueError(f"{path}: messages are nested too deep") from None
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{path}: a field has values of several kinds ({error})") from error
    return debug_args


def write_debug_args(debug_args: Message, path: str | os.PathLike[str]) -> None:
    """Write debug arguments to a file in protobuf's text format."""
    Path(path).write_text("".join(f"{line}\n" for line in _lines(debug_args)))


def update_debug_args_from_keys(debug_args: Message, flat_dargs: Mapping[str, Any]) -> None:
    """Set fields by their paths: `{"debug_usr.ignore_nan": True}`."""
    for path, value in flat_dargs.items():
        *parents, name = path.split(".")
        message = debug_args
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, name, value)


_KINDS: tuple[tuple[type, str], ...] = ((bool, "bools"), (int, "ints"), (float, "floats"), (str, "strings"))


def set_ini(debug_args: Message, **kwargs: Any) -> None:
    """Set settings of the original's compiler; they have no effect here.

    Raises:
        TypeError: A value is no bool, int, float or str.
    """
    for name, value in kwargs.items():
        getattr(debug_args.ini, _kind_of(name, value))[name] = value


def set_default_ini(debug_args: Message, **kwargs: Any) -> None:
    """Set the settings that have no value yet.

    Raises:
        TypeError: A value is no bool, int, float or str.
    """
    for name, value in kwargs.items():
        settings = getattr(debug_args.ini, _kind_of(name, value))
        if name not in settings:
            settings[name] = value


def _kind_of(name: str, value: Any) -> str:
    for kind, field in _KINDS:
        if isinstance(value, kind):
            return field
    raise TypeError(f"{name} is a {type(value).__name__}, expected a bool, int, float or str")


_MEMORY_LIMITS = {
    "compile_crd_memory_gi": "compile_coord_resource",
    "execute_crd_memory_gi": "execute_coord_resource",
    "wrk_memory_gi": "worker_resource",
    "act_memory_gi": "activation_resource",
    "cmd_memory_gi": "command_resource",
    "wgt_memory_gi": "weight_resource",
}


def update_debug_args_with_autogen_policy(debug_args: Message, policy: Any = None) -> None:
    """Set when the original's compiler generates kernels; the compiler here generates any that it lacks.

    Args:
        debug_args: The debug arguments.
        policy: "default", "disabled", "mild", "medium" or "aggressive"; None sets nothing.
    """
    if policy is not None:
        debug_args.debug_crd.autogen_policy = policy


def update_debug_args_with_mem_limits(
    debug_args: Message, runconfig: Mapping[str, Any] | None = None
) -> None:
    """Set the memory of the original's servers, in GiB, from settings such as `wrk_memory_gi`.

    Args:
        debug_args: The debug arguments.
        runconfig: Settings of a run; all others are ignored.
    """
    for name, resource in _MEMORY_LIMITS.items():
        if (limit := (runconfig or {}).get(name)) is not None:
            getattr(debug_args.debug_usr, resource).memory_bytes = int(limit) << 30


def _lines(message: Message, indent: str = "") -> Iterator[str]:
    for name, value in message.fields():
        yield from _field_lines(name, value, indent)
    for key, value in message.entries():
        yield from _field_lines("key", key, indent)
        yield from _field_lines("value", value, indent)


def _field_lines(name: str, value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, Message):
        yield f"{indent}{name}: {json.dumps(value)}"
        return
    if value.entries():
        for key, item in value.entries():
            yield f"{indent}{name} {{"
            yield from _field_lines("key", key, f"{indent}  ")
            yield from _field_lines("value", item, f"{indent}  ")
            yield f"{indent}}}"
        return
    for item in list(value) or [value]:
        if not isinstance(item, Message):
            yield f"{indent}{name}: {json.dumps(item)}"
            continue
        yield f"{indent}{name} {{"
        yield from _lines(item, f"{indent}  ")
        yield f"{indent}}}"


_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<token>[{}<>\[\]:,;]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s{}<>\[\]:,;"'#]+)"""
)


_PUNCTUATION = "{}<>[]:,;"


class _Tokens:
    """The tokens of a text."""

    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        self._tokens: list[tuple[str, int]] = []
        position, line = 0, 1
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise ValueError(f"{path}:{line}: got {text[position]!r}, expected protobuf's text format")
            if found["token"]:
                self._tokens.append((found["token"], line))
            line += found[0].count("\n")
            position = found.end()
        self._next = 0

    def peek(self) -> str | None:
        """Return the next token; None at the end."""
        return self._tokens[self._next][0] if self._next < len(self._tokens) else None

    def take(self, *expected: str) -> str:
        """Return the next token and advance: a name or a value, unless others are expected.

        Raises:
            ValueError: It is not one of those that are expected, or the text ends.
        """
        token = self.peek()
        if token is None or (token not in expected if expected else token in _PUNCTUATION):
            line = self._tokens[min(self._next, len(self._tokens) - 1)][1] if self._tokens else 1
            wanted = " or ".join(expected) or "a field or a value"
            raise ValueError(f"{self._path}:{line}: got {token or 'the end'!r}, expected {wanted}")
        self._next += 1
        return token


def _fill(message: Message, tokens: _Tokens, end: str | None = None) -> None:
    """Read fields up to a closing bracket, or to the end of the text."""
    while tokens.peek() != end:
        name = tokens.take()
        if tokens.peek() == ":":
            tokens.take(":")
        if tokens.peek() in ("{", "<"):
            inner = Message()
            _fill(inner, tokens, "}" if tokens.take("{", "<") == "{" else ">")
            tokens.take("}", ">")
            _add_message(message, name, inner)
        elif tokens.peek() == "[":
            while tokens.take("[", ",", "]") != "]":
                getattr(message, name).append(_value(tokens.take()))
        else:
            _add(message, name, _value(tokens.take()))
        if tokens.peek() in (",", ";"):
            tokens.take(",", ";")


def _add_message(message: Message, name: str, inner: Message) -> None:
    fields = dict(inner.fields())
    if fields.keys() == {"key", "value"}:
        getattr(message, name)[fields["key"]] = fields["value"]
    else:
        _add(message, name, inner)


def _add(message: Message, name: str, value: Any) -> None:
    """Set a field; one that is set already becomes a repeated field."""
    before = dict(message.fields()).get(name)
    if before is None:
        setattr(message, name, value)
    elif isinstance(before, Message) and len(before):
        before.append(value)
    else:
        repeated = Message()
        repeated.extend([before, value])
        setattr(message, name, repeated)


def _value(token: str) -> Any:
    if token[0] in "\"'":
        return json.loads(f'"{token[1:-1]}"' if token[0] == '"' else json.dumps(token[1:-1]))
    if token in ("true", "false"):
        return token == "true"
    for number in (int, float):
        try:
            return number(token)
        except ValueError:
            continue
    return token  # name of a value of an enumeration
