"""Strict YAML into typed models: every fault of a file at once, each with `file:line`.

YAML 1.2 rules apply, not PyYAML's 1.1 ones: `12:30` and `on` stay text, `0123` is refused as a number,
`1e-4` is a number. Duplicate keys are faults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    """A YAML file that cannot be used; the message lists all faults, one a line."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        self.path = path
        self.faults = faults
        super().__init__("\n".join(faults))


class _CoreSchemaLoader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema."""


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
        data: what it says; of a duplicate key the last value.
        lines: line of every key and list item.
        faults: its duplicate keys, one a line, with their place.
    """

    path: Path
    data: dict[str, Any]
    lines: Mapping[KeyPath, int]
    faults: tuple[str, ...]


def load_mapping(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, has duplicate keys, or is no mapping.
    """
    document = read_document(Path(path))
    if document.faults:
        raise ConfigError(document.path, list(document.faults))
    return document.data


def load_model(path: Path | str, model: type[Model]) -> Model:
    """Reads a YAML file into a pydantic model.

    Raises:
        ConfigError: as `load_mapping`, and for every key or value that the model refuses.
    """
    return validate_document(read_document(Path(path)), model)


def validate_document(document: Document, model: type[Model]) -> Model:
    """Checks a file against a model.

    Raises:
        ConfigError: with its duplicate keys and every key or value that the model refuses.
    """
    faults = list(document.faults)
    try:
        valid = validate(document.data, model, document.path, document.lines)
        if not faults:
            return valid
    except ConfigError as error:
        faults += error.faults
    raise ConfigError(document.path, faults)


def validate(
    data: Mapping[str, Any], model: type[Model], path: Path, lines: Mapping[KeyPath, int] | None = None
) -> Model:
    """Checks plain data against a model; faults name `path` and, where `lines` knows it, the line.

    Raises:
        ConfigError: with one fault a wrong, missing or unknown key, in the order of their lines.
    """
    known = lines or {}
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        faults = sorted(error.errors(), key=lambda fault: _line_of(fault, known) or 0)
        raise ConfigError(path, [_describe(path, known, fault, model) for fault in faults]) from None


def read_document(path: Path) -> Document:
    """Reads a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(path, [f"{path}: no such file; give the path of an existing YAML file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, [f"{path}: cannot be read: {error}"]) from None
    lines: dict[KeyPath, int] = {}
    try:
        loader = _CoreSchemaLoader(text)
        try:
            node = loader.get_single_node()
            faults = _walk(node, (), lines, path)
            data = {} if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(path, [f"{path}:{line}: not valid YAML: {error.problem}"]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"character code {error.character}: {error.reason}"
        raise ConfigError(path, [f"{path}:{line}: not valid YAML: {reason}"]) from None
    if not isinstance(data, dict):
        raise ConfigError(path, [f"{path}:1: expected a mapping of keys to values, got {data!r}"])
    return Document(path, data, lines, tuple(faults))


def _walk(node: yaml.Node | None, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> list[str]:
    """Notes the line of every key below `node`; returns the duplicate keys as faults."""
    faults: list[str] = []
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = (*at, str(key_node.value))
            line = key_node.start_mark.line + 1
            if key in lines:
                name = ".".join(map(str, key))
                faults.append(
                    f"{path}:{line}: duplicate key '{name}' (first on line {lines[key]}); keep one of them"
                )
            else:
                lines[key] = line
            faults += _walk(value_node, key, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            faults += _walk(item, (*at, index), lines, path)
    return faults


def _line_of(fault: Any, lines: Mapping[KeyPath, int]) -> int | None:
    """The line of a fault's key, or of the nearest key above it."""
    at: KeyPath = tuple(fault["loc"])
    while at and at not in lines:
        at = at[:-1]
    return lines[at] if at else None


def _describe(path: Path, lines: Mapping[KeyPath, int], fault: Any, model: type[BaseModel]) -> str:
    location: KeyPath = tuple(fault["loc"])
    line = _line_of(fault, lines)
    place = f"{path}:{line}" if line else f"{path}"
    name = ".".join(map(str, location))
    if fault["type"] == "extra_forbidden":
        close = get_close_matches(str(location[-1]), _keys_at(model, location[:-1]), n=1)
        advice = f"did you mean '{close[0]}'?" if close else "remove it or correct its spelling"
        return f"{place}: unknown key '{name}'; {advice}"
    if fault["type"] == "missing":
        return f"{place}: key '{name}' is missing; add it"
    message = fault["msg"].removeprefix("Value error, ")
    got = "" if isinstance(fault["input"], Mapping) else f" is {fault['input']!r}"
    return f"{place}: '{name}'{got}: {message}"


def _keys_at(model: type[BaseModel], at: KeyPath) -> list[str]:
    """The keys that a model has at a place of its data."""
    for key in at:
        if isinstance(key, int):  # of a list, whose field has told the model
            continue
        field = model.model_fields.get(key)
        inner = None if field is None else _model_in(field.annotation)
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in a type such as `Optional[list[Layer]]`; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
