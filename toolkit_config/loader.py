"""Strict YAML into typed models: every fault of a file at once, each with `file:line`.

YAML 1.2 rules apply, not PyYAML's 1.1 ones: `12:30` and `on` stay text, `0123` is refused as a number,
`1e-4` is a number. Duplicate keys are faults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]


class ConfigError(Exception):
    """A YAML file that cannot be used; the message lists all faults, one a line."""

    exit_code = 2

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


def load_mapping(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, has duplicate keys, or is no mapping.
    """
    return _read(Path(path))[0]


def load_model(path: Path | str, model: type[Model]) -> Model:
    """Reads a YAML file into a pydantic model.

    Raises:
        ConfigError: as `load_mapping`, and for every key or value that the model refuses.
    """
    path = Path(path)
    data, lines = _read(path)
    return validate(data, model, path, lines)


def validate(
    data: Mapping[str, Any], model: type[Model], path: Path, lines: Mapping[KeyPath, int] | None = None
) -> Model:
    """Checks plain data against a model; faults name `path` and, where `lines` knows it, the line.

    Raises:
        ConfigError: with one fault a wrong, missing or unknown key.
    """
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        faults = [_describe(path, lines or {}, fault) for fault in error.errors()]
        raise ConfigError(path, faults) from None


def _read(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(path, [f"{path}: no such file; give the path of an existing YAML file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, [f"{path}: cannot be read: {error}"]) from None
    loader = _CoreSchemaLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        faults = _walk(node, (), lines, path)
        if faults:
            raise ConfigError(path, faults)
        data = {} if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(path, [f"{path}:{line}: not valid YAML: {error.problem}"]) from None
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise ConfigError(path, [f"{path}:1: expected a mapping of keys to values, got {data!r}"])
    return data, lines


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


def _describe(path: Path, lines: Mapping[KeyPath, int], fault: Any) -> str:
    location: KeyPath = tuple(fault["loc"])
    known = location
    while known and known not in lines:
        known = known[:-1]
    place = f"{path}:{lines[known]}" if known else f"{path}"
    name = ".".join(map(str, location))
    if fault["type"] == "extra_forbidden":
        return f"{place}: unknown key '{name}'; remove it or correct its spelling"
    if fault["type"] == "missing":
        return f"{place}: key '{name}' is missing; add it"
    return f"{place}: '{name}' is {fault['input']!r}: {fault['msg']}"
