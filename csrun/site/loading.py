"""Loads the settings of a site from the site file and the environment, which takes precedence.

The site file is the first of these that exists; no other one is read:

1. the file that --site-config or the environment variable CSRUN_SITE_CONFIG names;
2. `$XDG_CONFIG_HOME/csrun/site.yaml` (`~/.config/csrun/site.yaml`);
3. `/etc/csrun/site.yaml`;
4. `configs/site.yaml` of the toolkit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cs_toolkit import config_file
from csrun.site import CONTAINERS, SITE_CONFIG_VARIABLE, Site, SiteError
from csrun.site.values import read_variables, scheduler_keys, variables

# Origin of a value that is not set.
DEFAULT = "default"

_SINGULARITY = ("singularity", "apptainer")
_HIDE_ENVIRONMENT = ("--cleanenv", "-e", "--containall", "-C")

SYSTEM_FILE = Path("/etc/csrun/site.yaml")


@dataclass(frozen=True, slots=True)
class LoadedSite:
    """The settings of a site and their origins.

    Attributes:
        values: of all settings, by key of the site file, with SCHEDULER.NAME for a key in a section.
        origins: "FILE:LINE", "environment NAME" or "default" for every key.
        path: of the site file; None without one.
        notes: about settings without effect, one line each.
    """

    site: Site
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    path: Path | None
    notes: tuple[str, ...]


def load_site(environment: Mapping[str, str], file: Path | None = None) -> LoadedSite:
    """Load the settings.

    Args:
        environment: of the launcher.
        file: the site file to use instead of the one that the search finds.

    Raises:
        SiteError: lists all errors of the file, of the environment and of combinations of settings.
    """
    path = file or find_site_file(environment)
    settings: dict[str, Any] = {}
    origins = dict.fromkeys(variables(), DEFAULT)
    errors: list[str] = []
    if path is not None:
        # Only here, because it imports pydantic and YAML (`csrun.site`).
        from csrun.site.file import read_site_file

        settings, lines, errors = read_site_file(path)
        origins.update({key: f"{path}:{lines[key]}" for key in settings if key in lines})
    from_environment, names, environment_errors = read_variables(environment)
    settings.update(from_environment)
    origins.update({name: f"environment {variable}" for name, variable in names.items()})
    if "systems" in names and "cs_ip" not in names:
        settings.pop("cs_ip", None)  # of the file, which would take precedence
        origins["cs_ip"] = DEFAULT
    errors += environment_errors
    errors += _conflicts(settings, origins)
    if errors:
        raise SiteError(errors)
    sections: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, each in scheduler_keys().items():
        if key in settings:
            sections[each.scheduler][each.name] = settings.pop(key)
    site = Site(**settings, sections=dict(sections))
    values = {
        **{name: value for name, value in asdict(site).items() if name in origins},
        **{
            key: site.sections.get(each.scheduler, {}).get(each.name, each.default)
            for key, each in scheduler_keys().items()
        },
    }
    return LoadedSite(site, values, origins, path, tuple(_notes(site, origins)))


def find_site_file(environment: Mapping[str, str]) -> Path | None:
    """Return the site file in use; a file that the user has named is used even if it does not exist."""
    named = environment.get(SITE_CONFIG_VARIABLE, "").strip()
    if named:
        return Path(named).absolute()
    return next((path for path in site_file_candidates(environment) if path.exists()), None)


def site_file_candidates(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the places of a site file, in order of precedence."""
    home = environment.get("HOME", "")
    config_home = environment.get("XDG_CONFIG_HOME", "")
    if not config_home.startswith("/"):  # required by the XDG base directory specification
        config_home = f"{home}/.config" if home.startswith("/") else ""
    own = (Path(config_home, "csrun", "site.yaml"),) if config_home else ()
    # Last, the configuration folder of the toolkit, where an administrator may put a site file.
    return (*own, SYSTEM_FILE, config_file("site.example.yaml").with_name("site.yaml"))


def _conflicts(settings: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Return the errors of settings that are valid separately but not together."""
    container = settings.get("container", "none")
    if container == "none" or container not in CONTAINERS:
        return []
    errors = []
    if not settings.get("container_image"):
        errors.append(
            f"{origins['container']}: container is '{container}' but container_image is not set; "
            f"set it (environment: SINGULARITY_IMAGE), or set 'container: none'"
        )
    options = settings.get("container_options")
    arguments = options if isinstance(options, (list, tuple)) and container in _SINGULARITY else ()
    hiding = [argument for argument in arguments if argument in _HIDE_ENVIRONMENT]
    if hiding:
        errors.append(
            f"{origins['container_options']}: container_options has {hiding[0]}, which hides the variables "
            f"of the job (TF_CONFIG, CSRUN_*) from its tasks; remove it: the launcher unsets "
            f"variables that break programs"
        )
    return errors


def _notes(site: Site, origins: Mapping[str, str]) -> list[str]:
    notes = []
    if site.cs_ip and site.systems:
        notes.append(f"{origins['systems']}: systems has no effect, because cs_ip is set")
    if site.container == "none":
        notes += [
            f"{origins[name]}: {name} has no effect with 'container: none'"
            for name in ("container_image", "container_options", "mount_dirs")
            if getattr(site, name)
        ]
    elif site.python:
        notes.append(f"{origins['python']}: python has no effect with 'container: {site.container}'")
    return notes
