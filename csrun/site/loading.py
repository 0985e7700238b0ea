"""Loads the settings of a site from files and the environment, key by key.

A later layer overrides the keys that it sets:

1. toolkit: `configs/site.yaml` of the toolkit;
2. administrator: `/etc/csrun/site.yaml`;
3. user: `$XDG_CONFIG_HOME/csrun/site.yaml` (`~/.config/csrun/site.yaml`);
4. project: `csrun.yaml`, the nearest one in the working directory or above it (`csrun.site.project`);
5. environment: variables.

The file that --site-config or the variable CSRUN_SITE_CONFIG names replaces layers 3 and 4. A file can lock
keys, which no later layer may change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cs_toolkit import config_file
from csrun.site import CONTAINERS, SITE_CONFIG_VARIABLE, Site, SiteError
from csrun.site.project import consent_error, find_project_file
from csrun.site.values import read_variables, scheduler_keys, variables

# Origin and layer of a value that is not set.
DEFAULT = "default"
ENVIRONMENT = "environment"
NAMED = "named"
PROJECT = "project"

_ORDER = (DEFAULT, "toolkit", "administrator", "user", NAMED, PROJECT, ENVIRONMENT)

_SINGULARITY = ("singularity", "apptainer")
_HIDE_ENVIRONMENT = ("--cleanenv", "-e", "--containall", "-C")
# Two forms of one setting: a layer that sets either of them replaces both.
_ADDRESSES = ("cs_ip", "systems")

SYSTEM_FILE = Path("/etc/csrun/site.yaml")


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A place of a site file, and its layer; the file may not exist."""

    layer: str
    path: Path


@dataclass(frozen=True, slots=True)
class Origin:
    """A value of a setting and its origin.

    Attributes:
        text: "FILE:LINE", "environment NAME" or "default".
        layer: name of the layer.
        value: that the layer sets.
    """

    text: str
    layer: str
    value: Any


@dataclass(frozen=True, slots=True)
class LoadedSite:
    """The settings of a site and their origins.

    Attributes:
        values: of all settings, by key of the site file, with SCHEDULER.NAME for a key in a section.
        sources: the origin in effect for every key.
        overridden: origins that a later layer overrides, by key, the latest first.
        searched: places of site files, in the order of their layers.
        files: those of them that exist and were read.
        notes: about settings without effect, one line each.
    """

    site: Site
    values: Mapping[str, Any]
    sources: Mapping[str, Origin]
    overridden: Mapping[str, tuple[Origin, ...]]
    searched: tuple[SiteFile, ...]
    files: tuple[SiteFile, ...]
    notes: tuple[str, ...]

    @property
    def origins(self) -> dict[str, str]:
        """The text of the origin of every key."""
        return {key: source.text for key, source in self.sources.items()}


@dataclass(slots=True)
class _Merged:
    """The layers that are merged so far."""

    sources: dict[str, Origin] = field(default_factory=dict)
    overridden: dict[str, list[Origin]] = field(default_factory=lambda: defaultdict(list))
    locked: dict[str, str] = field(default_factory=dict)  # key to the place that locks it
    errors: list[str] = field(default_factory=list)

    def add(self, layer: Iterable[tuple[str, Origin]], locks: Mapping[str, str]) -> None:
        """Add a layer with its values by key, and the places of its locks by key."""
        values = dict(layer)
        for key, source in values.items():
            if place := self._lock(key, values):
                self.errors.append(
                    f"{source.text}: {key} is {_shown(source.value)}, and {place} locks it for later "
                    f"layers; expected no other value: remove this one, or ask who maintains that file"
                )
        replaced = set(values)
        if not replaced.isdisjoint(_ADDRESSES):
            replaced.update(_ADDRESSES)
        for key in replaced:
            if earlier := self.sources.pop(key, None):
                self.overridden[key].insert(0, earlier)
        self.sources.update(values)
        self.locked = {**locks, **self.locked}

    def _lock(self, key: str, values: Mapping[str, Origin]) -> str | None:
        """Return the place that locks a key which a layer would change; None if the layer may set it."""
        keys = _ADDRESSES if key in _ADDRESSES else (key,)
        place = next((self.locked[each] for each in keys if each in self.locked), None)
        # A launcher passes settings to its job in variables: the same value again is no change.
        same = _in_effect(key, self.sources) == _in_effect(key, values)
        return None if same else place


def load_site(
    environment: Mapping[str, str], file: Path | None = None, directory: Path | None = None
) -> LoadedSite:
    """Load the settings.

    Args:
        environment: of the launcher.
        file: the site file to use instead of those of the user and the project.
        directory: in which the search for the project's file begins; None for the working directory.

    Raises:
        SiteError: lists all errors of the files, of the environment and of combinations of settings.
    """
    searched = site_files(environment, file, directory)
    merged = _Merged()
    files = []
    for one in searched:
        if one.layer != NAMED and not one.path.exists():
            continue
        files.append(one)
        # Only here, because it imports pydantic and YAML (`csrun.site`).
        from csrun.site.file import read_site_file

        content = read_site_file(one.path)
        merged.errors += content.errors
        if one.layer == PROJECT:
            keys = [*content.settings, *(["locked"] if content.locked else [])]
            refused = consent_error(one.path, keys, content.lines, environment)
            if refused:
                merged.errors.append(refused)
        # An invalid file may have keys that do not exist; their errors are reported above.
        known = {key: value for key, value in content.settings.items() if key in content.lines}
        origins = ((key, Origin(f"{one.path}:{content.lines[key]}", one.layer, known[key])) for key in known)
        merged.add(origins, dict.fromkeys(content.locked, f"{one.path}:{content.lines.get('locked', 1)}"))
    from_environment, names, errors = read_variables(environment)
    merged.errors += errors
    merged.add(
        (
            (key, Origin(f"environment {names[key]}", ENVIRONMENT, value))
            for key, value in from_environment.items()
        ),
        {},
    )
    merged.errors += _conflicts(merged.sources)
    if merged.errors:
        raise SiteError(merged.errors)
    return _loaded(merged, searched, tuple(files))


def _loaded(merged: _Merged, searched: tuple[SiteFile, ...], files: tuple[SiteFile, ...]) -> LoadedSite:
    settings = {key: source.value for key, source in merged.sources.items()}
    sections: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, each in scheduler_keys().items():
        if key in settings:
            sections[each.scheduler][each.name] = settings.pop(key)
    site = Site(**settings, sections=dict(sections), locked=dict(merged.locked))
    plain = asdict(site)
    values = {
        key: site.sections.get(each.scheduler, {}).get(each.name, each.default) if each else plain[key]
        for key in variables()
        for each in [scheduler_keys().get(key)]
    }
    sources = {key: merged.sources.get(key) or Origin(DEFAULT, DEFAULT, values[key]) for key in variables()}
    overridden = {key: tuple(origins) for key, origins in merged.overridden.items()}
    notes = tuple(_notes(site, sources))
    return LoadedSite(site, values, sources, overridden, searched, files, notes)


def site_files(
    environment: Mapping[str, str], file: Path | None = None, directory: Path | None = None
) -> tuple[SiteFile, ...]:
    """Return the places of site files, in the order of their layers.

    Args:
        environment: of the launcher.
        file: that is named instead of those of the user and the project.
        directory: in which the search for the project's file begins; None for the working directory.
    """
    named = environment.get(SITE_CONFIG_VARIABLE, "").strip()
    chosen = file or (Path(named).absolute() if named else None)
    # In the configuration folder of the toolkit an administrator may put a site file, too.
    administrators = (
        SiteFile("toolkit", config_file("site.example.yaml").with_name("site.yaml")),
        SiteFile("administrator", SYSTEM_FILE),
    )
    if chosen is not None:
        others = (one for one in administrators if one.path != chosen.absolute())
        return (*others, SiteFile(NAMED, chosen))
    own = user_file(environment)
    try:
        project = find_project_file(directory or Path.cwd())
    except OSError:  # the working directory has been removed
        project = None
    return (
        *administrators,
        *([SiteFile("user", own)] if own else []),
        *([SiteFile(PROJECT, project)] if project else []),
    )


def user_file(environment: Mapping[str, str]) -> Path | None:
    """Return the place of the user's site file; None for a user without a home."""
    home = environment.get("HOME", "")
    config_home = environment.get("XDG_CONFIG_HOME", "")
    if not config_home.startswith("/"):  # required by the XDG base directory specification
        config_home = f"{home}/.config" if home.startswith("/") else ""
    return Path(config_home, "csrun", "site.yaml") if config_home else None


def _in_effect(key: str, sources: Mapping[str, Origin]) -> Any:
    """Return the value of a key among those that are set; that of `cs_ip` and `systems` is one text."""
    values = {each: sources[each].value for each in (key, *_ADDRESSES) if each in sources}
    if key not in _ADDRESSES:
        return values.get(key)
    systems = values.get("systems") or ()
    return values.get("cs_ip") or (",".join(systems) if isinstance(systems, tuple) else systems)


def _shown(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


def _conflicts(sources: Mapping[str, Origin]) -> list[str]:
    """Return the errors of settings that are valid separately but not together."""
    container = sources["container"].value if "container" in sources else "none"
    if container == "none" or container not in CONTAINERS:
        return []
    errors = []
    if "container_image" not in sources or not sources["container_image"].value:
        errors.append(
            f"{sources['container'].text}: container is '{container}' but container_image is not set; "
            f"set it (environment: SINGULARITY_IMAGE), or set 'container: none'"
        )
    options = sources["container_options"].value if "container_options" in sources else ()
    arguments = options if isinstance(options, (list, tuple)) and container in _SINGULARITY else ()
    hiding = [argument for argument in arguments if argument in _HIDE_ENVIRONMENT]
    if hiding:
        errors.append(
            f"{sources['container_options'].text}: container_options has {hiding[0]}, which hides the "
            f"variables of the job (TF_CONFIG, CSRUN_*) from its tasks; remove it: the launcher unsets "
            f"variables that break programs"
        )
    return errors


def _notes(site: Site, sources: Mapping[str, Origin]) -> list[str]:
    """Return notes about settings without effect.

    A layer that chooses another container has also decided on the settings of earlier layers.
    """

    def is_set(name: str) -> bool:
        ranks = [_ORDER.index(sources[key].layer) for key in (name, "container")]
        return bool(getattr(site, name)) and ranks[0] >= ranks[1]

    notes = []
    if site.cs_ip and site.systems:
        notes.append(f"{sources['systems'].text}: systems has no effect, because cs_ip is set")
    if site.container == "none":
        notes += [
            f"{sources[name].text}: {name} has no effect with 'container: none'"
            for name in ("container_image", "container_options", "mount_dirs")
            if is_set(name)
        ]
    elif is_set("python"):
        notes.append(f"{sources['python'].text}: python has no effect with 'container: {site.container}'")
    return notes
