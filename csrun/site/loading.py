"""A site's settings from the site file and the environment; the environment beats the file.

The file is the first of these that there is, and no other one is read:

1. what --site-config or the environment variable CSRUN_SITE_CONFIG names;
2. `$XDG_CONFIG_HOME/csrun/site.yaml` (`~/.config/csrun/site.yaml`);
3. `/etc/csrun/site.yaml`;
4. `configs/site.yaml` of the toolkit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cs_toolkit import config_file
from csrun.site.model import CONTAINERS, SITE_CONFIG_VARIABLE, Site, SiteError
from csrun.site.values import read_variables

DEFAULT = "default"
"""Origin of a value that nobody has set."""

_SINGULARITY = ("singularity", "apptainer")
_HIDE_ENVIRONMENT = ("--cleanenv", "-e", "--containall", "-C")

SYSTEM_FILE = Path("/etc/csrun/site.yaml")


@dataclass(frozen=True, slots=True)
class LoadedSite:
    """A site's settings and where they come from.

    Attributes:
        origins: for every field "FILE:LINE", "environment NAME" or "default".
        path: the site file; None where there is none.
        notes: what is set and has no effect, one line each.
    """

    site: Site
    origins: Mapping[str, str]
    path: Path | None
    notes: tuple[str, ...]


def load_site(environment: Mapping[str, str], file: Path | None = None) -> LoadedSite:
    """Loads the settings.

    Args:
        environment: of the launcher.
        file: the site file to use instead of the one that the search finds.

    Raises:
        SiteError: with all faults of the file, of the environment and of the settings together.
    """
    path = file or find_site_file(environment)
    settings: dict[str, Any] = {}
    origins = {field.name: DEFAULT for field in fields(Site)}
    faults: list[str] = []
    if path is not None:
        # Only here: pydantic and YAML cost more time than everything else that a launcher does.
        from csrun.site.file import read_site_file

        settings, lines, faults = read_site_file(path)
        origins.update({name: f"{path}:{lines[name]}" for name in settings if name in lines})
    from_environment, variables, environment_faults = read_variables(environment)
    settings.update(from_environment)
    origins.update({name: f"environment {variable}" for name, variable in variables.items()})
    faults += environment_faults
    faults += _contradictions(settings, origins)
    if faults:
        raise SiteError(faults)
    site = Site(**settings)
    return LoadedSite(site, origins, path, tuple(_notes(site, origins)))


def find_site_file(environment: Mapping[str, str]) -> Path | None:
    """The site file that counts; one that the user has named counts whether it exists or not."""
    named = environment.get(SITE_CONFIG_VARIABLE, "").strip()
    if named:
        return Path(named).absolute()
    return next((path for path in searched_files(environment) if path.exists()), None)


def searched_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The places where a site file is looked for, the first that exists counts."""
    home = environment.get("HOME", "")
    config_home = environment.get("XDG_CONFIG_HOME", "")
    if not config_home.startswith("/"):  # as the XDG base directory specification has it
        config_home = f"{home}/.config" if home.startswith("/") else ""
    own = (Path(config_home, "csrun", "site.yaml"),) if config_home else ()
    # The folder of the files that come with the toolkit, where an administrator may put one beside them.
    return (*own, SYSTEM_FILE, config_file("site.example.yaml").with_name("site.yaml"))


def _contradictions(settings: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Faults of settings that are right one by one and cannot be used together."""
    container = settings.get("container", "none")
    if container == "none" or container not in CONTAINERS:
        return []
    faults = []
    if not settings.get("container_image"):
        faults.append(
            f"{origins['container']}: container is '{container}' and there is no container_image; "
            f"set it (environment: SINGULARITY_IMAGE), or set 'container: none'"
        )
    options = settings.get("container_options")
    words = options if isinstance(options, (list, tuple)) and container in _SINGULARITY else ()
    hiding = [word for word in words if word in _HIDE_ENVIRONMENT]
    if hiding:
        faults.append(
            f"{origins['container_options']}: container_options has {hiding[0]}, which hides the variables "
            f"of the job (TF_CONFIG, CSRUN_*) from its tasks; remove it: what breaks programs is cleared"
        )
    return faults


def _notes(site: Site, origins: Mapping[str, str]) -> list[str]:
    notes = []
    if site.container == "none":
        notes += [
            f"{origins[name]}: {name} has no effect with 'container: none'"
            for name in ("container_image", "container_options", "mount_dirs")
            if getattr(site, name)
        ]
    elif site.python:
        notes.append(f"{origins['python']}: python has no effect with 'container: {site.container}'")
    return notes
