"""The site file: its model, its reader and its schema. Imports pydantic and YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from cs_toolkit.loader import ConfigError, read_document, validate_document
from csrun.schedulers.registry import check_name as check_launcher
from csrun.site import Container, values
from csrun.site.values import VARIABLES


def _check(check: Callable[[Any], Any]) -> AfterValidator:
    return AfterValidator(check)


def _list_of_texts(value: Any) -> Any:
    # Neither comma-separated nor shell syntax: a list is unambiguous for names with blanks and commas.
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected a list of texts, for example [first, second]")
    return tuple(value)


def _minutes(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_TEXT_OR_NUMBER = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]})
Count = Annotated[int, Field(ge=1, le=values.MAX_COUNT)]
Name = Annotated[str, _check(values.check_name)]
Options = Annotated[tuple[str, ...], BeforeValidator(_list_of_texts), _check(values.check_options)]


class SiteFile(BaseModel):
    """Settings of a site for the launchers csrun_cpu and csrun_wse. All keys are optional."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title="csrun site configuration")

    launcher: Annotated[str, _check(check_launcher)] | None = Field(
        None,
        description="Where jobs run: processes of this machine (local), a Slurm cluster (slurm), or a "
        "scheduler that a package of the site brings. Left out: slurm where gres_resource, gres_node or "
        "licence is set or inside a Slurm allocation, else local.",
    )
    def_nodes: Count = Field(1, description="Nodes of a job that does not say --total-nodes.")
    def_tasks_per_node: Count = Field(
        2, description="Tasks on each node of a job that does not say --tasks-per-node."
    )
    def_cpus_per_task: Count | None = Field(
        None, description="CPUs of each task of a job that does not say --cpus-per-task. Left out: open."
    )
    container: Container = Field(
        "none", description="What programs run in; none is the Python environment that python names."
    )
    python: Annotated[str, _check(values.check_path)] = Field(
        "",
        description="Absolute path of the interpreter of programs, with the toolkit and further packages. "
        "Left out: the toolkit's own.",
    )
    container_image: Annotated[str, _check(values.check_path)] = Field(
        "", description="Absolute path of the container image: a file, for charliecloud a directory too."
    )
    container_options: Options = Field(
        (), description="Further arguments of the container runtime, in front of the image."
    )
    mount_dirs: Annotated[
        tuple[str, ...], BeforeValidator(_list_of_texts), _check(values.check_mount_dirs)
    ] = Field((), description="Absolute directories that every container sees, with the working directory.")
    gres_resource: Annotated[str, _check(values.check_gres)] = Field(
        "", description="Slurm's generic resource (gres) for the CS system, for example cs:1."
    )
    gres_node: Name = Field(
        "", description="The node that owns the CS system's resource, kept free of CPU-only jobs."
    )
    licence: Annotated[str, _check(values.check_licence)] = Field(
        "", description="Slurm license for the CS system if it is not a gres, for example cs:1."
    )
    cs_ip: Annotated[str, _check(values.check_address)] = Field(
        "", description="Address of the CS system: HOST or HOST:PORT."
    )
    partition: Name = Field("", description="Slurm partition of all jobs. Left out: the cluster's default.")
    account: Name = Field("", description="Slurm account of all jobs.")
    qos: Name = Field("", description="Slurm quality of service of all jobs.")
    time_limit: Annotated[
        str, BeforeValidator(_minutes), _check(values.check_time_limit), _TEXT_OR_NUMBER
    ] = Field("", description="Time limit of all jobs as Slurm takes it: 90 (minutes), 4:00:00, 1-12.")
    slurm_options: Options = Field((), description="Further arguments of srun and sbatch.")


def read_site_file(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """Return the settings of a site file and their lines, by key, and all errors with file and line.

    If there are errors, the settings are the unchecked content of the file.
    """
    try:
        document = read_document(path)
    except ConfigError as error:
        return {}, {}, error.errors
    lines = {str(key[0]): line for key, line in document.lines.items() if len(key) == 1}
    try:
        site = validate_document(document, SiteFile)
    except ConfigError as error:
        return document.data, lines, error.errors
    return {name: getattr(site, name) for name in site.model_fields_set}, lines, []


def site_schema() -> dict[str, Any]:
    """Return the JSON Schema of the site file for editors, with the environment variable of every key."""
    schema = SiteFile.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    for field, names in VARIABLES.items():
        about = schema["properties"][field]
        about["description"] += f" Environment: {' or '.join(names)}."
    return schema
