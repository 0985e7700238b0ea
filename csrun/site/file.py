"""The site file: its model, its reader and its schema. Imports pydantic and YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
)

from cs_toolkit.loader import ConfigError, read_document, validate_document
from cs_toolkit.network.liveness import MAX_PEER_TIMEOUT_S, MIN_PEER_TIMEOUT_S
from csrun.schedulers.registry import check_name as check_launcher
from csrun.site import Container, values
from csrun.site.values import SchedulerKey, scheduler_keys, variables


def _check(check: Callable[[Any], Any]) -> AfterValidator:
    return AfterValidator(check)


def _list_of_texts(value: Any) -> Any:
    # Neither comma-separated nor shell syntax: a list is unambiguous for names with blanks and commas.
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected a list of texts, for example [first, second]")
    return tuple(value)


def _known_keys(value: Any) -> Any:
    known = list(variables())
    for key in _list_of_texts(value):
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise ValueError(
                f"expected keys of this file, got {key!r}" + (f": did you mean {near[0]!r}?" if near else "")
            )
    return tuple(value)


def _minutes(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# Key of the list of locked keys, which is no setting.
LOCKED = "locked"
_ABOUT_LOCKED = (
    "Keys that no later layer (the user's file, the project's, the environment, flags) may change, with the "
    "values of this file or the defaults."
)

_TEXT_OR_NUMBER = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]})
Count = Annotated[int, Field(ge=1, le=values.MAX_COUNT)]
Options = Annotated[tuple[str, ...], BeforeValidator(_list_of_texts), _check(values.check_options)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GeneralSettings(_Section):
    """The settings of a site that no scheduler declares."""

    launcher: Annotated[str, _check(check_launcher)] | None = Field(
        None,
        description="Name of the scheduler that runs jobs, such as local (processes of this machine) or that "
        "of a package of the site. Default: a scheduler whose resource for the CS system is set, or in "
        "whose job the launcher runs, else local.",
    )
    def_nodes: Count = Field(1, description="Nodes of a job without --total-nodes.")
    def_tasks_per_node: Count = Field(2, description="Tasks on each node of a job without --tasks-per-node.")
    def_cpus_per_task: Count | None = Field(
        None, description="CPUs of each task of a job without --cpus-per-task. Default: not set."
    )
    max_restarts: Annotated[int, Field(ge=0, le=values.MAX_COUNT)] = Field(
        3,
        description="How often a job without --max-restarts restarts each worker that dies; 0 never.",
    )
    container: Container = Field(
        "none", description="Container runtime of programs; none for the Python environment of python."
    )
    python: Annotated[str, _check(values.check_path)] = Field(
        "",
        description="Absolute path of the interpreter of programs, with the toolkit and further packages. "
        "Default: the toolkit's own.",
    )
    container_image: Annotated[str, _check(values.check_path)] = Field(
        "", description="Absolute path of the container image: a file, for charliecloud a directory too."
    )
    container_options: Options = Field(
        (), description="Further arguments of the container runtime, in front of the image."
    )
    mount_dirs: Annotated[
        tuple[str, ...], BeforeValidator(_list_of_texts), _check(values.check_mount_dirs)
    ] = Field(
        (),
        description="Absolute directories that every container mounts, in addition to the working directory.",
    )
    cs_ip: Annotated[str, _check(values.check_address)] = Field(
        "", description="Address of the CS system: HOST or HOST:PORT."
    )
    systems: Annotated[tuple[str, ...], BeforeValidator(_list_of_texts), _check(values.check_addresses)] = (
        Field(
            (),
            description="Addresses of several CS systems, instead of cs_ip; a job uses the first free one. "
            "They should have the same fabric.",
        )
    )
    peer_timeout_s: Annotated[float, Field(ge=MIN_PEER_TIMEOUT_S, le=MAX_PEER_TIMEOUT_S)] | None = Field(
        None,
        description="Seconds for which a task, a node or the CS system may be silent until it counts as "
        "lost. Default: 60.",
    )
    certs: Annotated[str, _check(values.check_user_directory)] = Field(
        "",
        description="Directory of the user's certificate for encrypted connections to the CS system: an "
        "absolute path, or one that begins with ~/ for the home of each user.",
    )


def site_file_model() -> type[BaseModel]:
    """Return the model of the site file, with the keys of all schedulers and sections of packages."""
    top: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for key, each in scheduler_keys().items():
        place = sections.setdefault(each.scheduler, {}) if "." in key else top
        place[each.name] = (_type_of(each), Field(each.default, description=each.setting.description))
    for name, own in sections.items():
        section = create_model(f"{name}_section", __base__=_Section, **own)
        top[name] = (section, Field(section(), description=f"Settings of the scheduler {name}."))
    top[LOCKED] = (
        Annotated[tuple[str, ...], BeforeValidator(_known_keys)],
        Field((), description=_ABOUT_LOCKED),
    )
    return create_model(
        "SiteFile",
        __base__=GeneralSettings,
        __doc__="Settings of a site for the launchers csrun_cpu and csrun_wse. All keys are optional.",
        **top,
    )


def _type_of(key: SchedulerKey) -> Any:
    check = _check(key.setting.check)
    if key.setting.kind == "arguments":
        return Annotated[tuple[str, ...], BeforeValidator(_list_of_texts), check]
    if key.setting.kind == "minutes":
        return Annotated[str, BeforeValidator(_minutes), check, _TEXT_OR_NUMBER]
    return Annotated[str, check]


@dataclass(frozen=True, slots=True)
class SiteFileContent:
    """A site file that has been read.

    Attributes:
        settings: by key; the unchecked content of the file if it has errors.
        lines: of the keys.
        locked: keys that no later layer may change.
        errors: with file and line.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    locked: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def read_site_file(path: Path) -> SiteFileContent:
    """Read a site file and find all its errors."""
    try:
        document = read_document(path)
    except ConfigError as error:
        return SiteFileContent(errors=tuple(error.errors))
    lines = {".".join(map(str, key)): line for key, line in document.lines.items()}
    try:
        site = validate_document(document, site_file_model())
    except ConfigError as error:
        return SiteFileContent(document.data, lines, errors=tuple(error.errors))
    settings: dict[str, Any] = {}
    for name in (key for key in document.data if key != LOCKED):
        value = getattr(site, name)
        if isinstance(value, BaseModel):
            settings |= {f"{name}.{each}": getattr(value, each) for each in value.model_fields_set}
        else:
            settings[name] = value
    return SiteFileContent(settings, lines, getattr(site, LOCKED))


def site_schema() -> dict[str, Any]:
    """Return the JSON Schema of the site file for editors, with the environment variable of every key."""
    schema = site_file_model().model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    schema["title"] = "csrun site configuration"
    for key, names in variables().items():
        name, _, inner = key.partition(".")
        properties = schema["$defs"][f"{name}_section"]["properties"] if inner else schema["properties"]
        properties[inner or name]["description"] += f" Environment: {' or '.join(names)}."
    return schema
