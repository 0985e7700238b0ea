"""Strict loader of YAML into typed models, which reports all errors of a file, each with `file:line`.

Scalars follow YAML 1.2 instead of PyYAML's 1.1: `12:30` and `on` are text, `0123` is not a number, `1e-4` is
one. Duplicate keys are errors.
"""

from __future__ import annotations

import math
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from cs_toolkit.errors import UsageError

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]


class ConfigError(UsageError):
    """A YAML file is invalid; the message lists all errors, one per line."""

    def __init__(self, path: Path, errors: list[str]) -> None:
        self.path = path
        self.errors = errors
        super().__init__("\n".join(errors))


# Limits of a file. PyYAML takes 0.6 s for a file with this many nodes, and needs exponential time and memory
# for aliases of aliases.
MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_LEVELS = 64
MAX_INTEGER_BITS = 64
_LONG_INTEGER = f"an integer has more than {MAX_INTEGER_BITS} bits"


class _LimitedLoader(yaml.SafeLoader):
    """SafeLoader, with the rules of YAML 1.1, that refuses what would take too long or too much memory.

    Every error that it raises has the line.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0
        self._nodes = 0
        self._expanded: dict[yaml.Node, tuple[int, int]] = {}  # nodes and levels, with those of aliases

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._level, self._nodes = self._level + 1, self._nodes + 1
        self._check(self._nodes, self._level, event.start_mark)
        node = super().compose_node(parent, index)
        assert node is not None
        self._level -= 1
        if isinstance(event, yaml.AliasEvent):
            # A node is recorded when it is complete.
            if node not in self._expanded:
                raise _error(f"'*{event.anchor}' is part of the value that it refers to", event.start_mark)
            return node
        children = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _error("a key must be a text or a number", key.start_mark)
            children = [child for pair in node.value for child in pair]
        nodes, levels = 1, 0
        for child in children:
            nodes += self._expanded[child][0]
            levels = max(levels, self._expanded[child][1])
        self._check(nodes, levels + 1, event.start_mark)
        self._expanded[node] = nodes, levels + 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            # Of a scalar that its tag does not fit, such as `!!int x`.
            got = reprlib.repr(node.value)
            kind = node.tag.rpartition(":")[2]
            # Python converts no longer ones, and its error names one of its functions.
            if kind == "int" and len(node.value) > sys.int_info.default_max_str_digits:
                raise _error(_LONG_INTEGER, node.start_mark) from None
            raise _error(f"{got} is not a valid {kind}: {error}", node.start_mark) from None
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise _error(_LONG_INTEGER, node.start_mark)
        # An infinity may be meant, such as a limit that is never reached, if the file says so.
        if isinstance(value, float) and not math.isfinite(value) and "inf" not in node.value.lower():
            raise _error(f"{node.value} is not a finite number", node.start_mark)
        return value

    @staticmethod
    def _check(nodes: int, levels: int, mark: Any) -> None:
        if nodes > MAX_NODES:
            raise _error(f"more than {MAX_NODES:,} values, those that aliases repeat included", mark)
        if levels > MAX_LEVELS:
            raise _error(f"nested more than {MAX_LEVELS} levels", mark)


def _error(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _CoreSchemaLoader(_LimitedLoader):
    """Loader with the scalar rules of YAML 1.2's core schema."""


_CoreSchemaLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _CoreSchemaLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), [*_first.replace("\0", ""), ""]
    )


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node), 0)


_CoreSchemaLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file whose top level is a mapping.

    Attributes:
        data: content; the last value of a duplicate key.
        lines: line of every key and list item.
        errors: messages about duplicate keys.
    """

    path: Path
    data: dict[str, Any]
    lines: Mapping[KeyPath, int]
    errors: tuple[str, ...]


def load_mapping(path: Path | str) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, not a mapping, or has duplicate keys.
    """
    document = read_document(Path(path))
    if document.errors:
        raise ConfigError(document.path, list(document.errors))
    return document.data


def load_model(path: Path | str, model: type[Model]) -> Model:
    """Read a YAML file into a pydantic model.

    Raises:
        ConfigError: as `load_mapping`, and for every key or value that the model rejects.
    """
    return validate_document(read_document(Path(path)), model)


def validate_document(document: Document, model: type[Model]) -> Model:
    """Validate a file with a model.

    Raises:
        ConfigError: lists duplicate keys and every key or value that the model rejects.
    """
    errors = list(document.errors)
    try:
        valid = validate(document.data, model, document.path, document.lines)
        if not errors:
            return valid
    except ConfigError as error:
        errors += error.errors
    raise ConfigError(document.path, errors)


def validate(
    data: Mapping[str, Any], model: type[Model], path: Path, lines: Mapping[KeyPath, int] | None = None
) -> Model:
    """Validate plain data with a model; errors name `path` and, if it is in `lines`, the line.

    Raises:
        ConfigError: lists every invalid, missing or unknown key, in the order of their lines.
    """
    known = lines or {}
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        errors = sorted(error.errors(), key=lambda each: _line_of(each, known) or 0)
        raise ConfigError(path, [_describe(path, known, each, model) for each in errors]) from None


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, or not a mapping.
    """
    text = _read_text(path)
    lines: dict[KeyPath, int] = {}
    with _loader_of(path, text, _CoreSchemaLoader) as loader:
        node = loader.get_single_node()
        errors = _walk(node, (), lines, path)
        data = {} if node is None else loader.construct_document(node)
    if not isinstance(data, dict):
        raise ConfigError(path, [f"{path}:1: expected a mapping of keys to values, got {reprlib.repr(data)}"])
    return Document(path, data, lines, tuple(errors))


def load_yaml(path: Path | str) -> Any:
    """Read any YAML file with the scalar rules of YAML 1.1, as `yaml.safe_load` does.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, or exceeds the limits of this module.
    """
    path = Path(path)
    with _loader_of(path, _read_text(path), _LimitedLoader) as loader:
        return loader.get_single_data()


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(path, [f"{path}: no such file; give the path of an existing YAML file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, [f"{path}: cannot be read: {error}"]) from None
    if len(text) > MAX_BYTES:
        raise ConfigError(path, [f"{path}: has more than {MAX_BYTES:,} characters; give a smaller YAML file"])
    return text


@contextmanager
def _loader_of(path: Path, text: str, kind: type[_LimitedLoader]) -> Iterator[_LimitedLoader]:
    """Yield a loader of a text, and turn its errors into those of a file.

    Raises:
        ConfigError: the text is not YAML, or exceeds a limit.
    """
    try:
        loader = kind(text)
        try:
            yield loader
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(path, [f"{path}:{line}: not valid YAML: {error.problem}"]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"character code {error.character}: {error.reason}"
        raise ConfigError(path, [f"{path}:{line}: not valid YAML: {reason}"]) from None


def _walk(node: yaml.Node | None, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> list[str]:
    """Record the line of every key below `node`; return messages about duplicate keys."""
    errors: list[str] = []
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = (*at, str(key_node.value))
            line = key_node.start_mark.line + 1
            if key in lines:
                name = ".".join(map(str, key))
                errors.append(
                    f"{path}:{line}: duplicate key '{name}' (first on line {lines[key]}); keep one of them"
                )
            else:
                lines[key] = line
            errors += _walk(value_node, key, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            errors += _walk(item, (*at, index), lines, path)
    return errors


def _line_of(error: Any, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of an error's key, or of the nearest key above it."""
    at: KeyPath = tuple(error["loc"])
    while at and at not in lines:
        at = at[:-1]
    return lines[at] if at else None


def _describe(path: Path, lines: Mapping[KeyPath, int], error: Any, model: type[BaseModel]) -> str:
    location: KeyPath = tuple(error["loc"])
    line = _line_of(error, lines)
    place = f"{path}:{line}" if line else f"{path}"
    name = ".".join(map(str, location))
    if error["type"] == "extra_forbidden":
        close = get_close_matches(str(location[-1]), _keys_at(model, location[:-1]), n=1)
        advice = f"did you mean '{close[0]}'?" if close else "remove it or correct its spelling"
        return f"{place}: unknown key '{name}'; {advice}"
    if error["type"] == "missing":
        return f"{place}: key '{name}' is missing; add it"
    message = error["msg"].removeprefix("Value error, ")
    got = "" if isinstance(error["input"], Mapping) else f" is {reprlib.repr(error['input'])}"
    return f"{place}: '{name}'{got}: {message}"


def _keys_at(model: type[BaseModel], at: KeyPath) -> list[str]:
    """Return the keys of a model at a place of its data."""
    for key in at:
        if isinstance(key, int):  # an index of a list, whose field has determined the model
            continue
        field = model.model_fields.get(key)
        inner = None if field is None else _model_in(field.annotation)
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type such as `Optional[list[Layer]]`; None for none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
