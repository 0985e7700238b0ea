"""csrun config init: asks for the important settings, tests the answers, and writes the user's site file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

import click

from cs_toolkit.errors import UsageError
from csrun.commands.doctor import examine
from csrun.console import STDOUT, wants_color, write_text
from csrun.doctor import line
from csrun.errors import CsrunError
from csrun.schedulers.registry import LOCAL, schedulers
from csrun.site import CONTAINERS, SITE_CONFIG_VARIABLE
from csrun.site.loading import LoadedSite, load_site, user_file
from csrun.site.values import read_variables, variables

EXIT_WOULD_FAIL = 1

# The questions in their order: key of the site file, and text.
_QUESTIONS: Mapping[str, str] = {
    "launcher": "Where do jobs run? ({launchers})",
    "cs_ip": "Address of the CS system, HOST:PORT, several separated by commas (empty: programs name it)",
    "certs": "Directory of your certificate for it (empty: no encryption)",
    "container": "Container of programs ({containers})",
    "container_image": "Absolute path of the container image",
    "python": "Interpreter of programs, an absolute path (empty: the toolkit's own)",
}
_NAMES = {"launchers": ", ".join(each.name for each in schedulers()), "containers": ", ".join(CONTAINERS)}


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for key, text in reversed(list(_QUESTIONS.items())):
        function = click.option(_flag(key), key, metavar="TEXT", help=text.format_map(_NAMES))(function)
    return function


@click.command("init", options_metavar="[FLAGS]")
@_options
@click.option(
    "--yes",
    is_flag=True,
    help="Ask nothing: take the detected answer where no flag gives one, and write the file, also if a test "
    "has failed or a file exists (it is kept as site.yaml.bak).",
)
def init(yes: bool, **given: str | None) -> int:
    """Asks for the settings that matter, tests the answers, and writes your site file.

    The tests are those of `csrun doctor`, without a job on the nodes. Answers that the administrator's file
    gives already are not written. The exit code is 0 if a run would work, otherwise 1.
    """
    path = user_file(os.environ)
    if path is None:
        raise CsrunError(
            "HOME is not set, so there is no place for your site file; expected a home directory"
        )
    detected = detect(_administrators_site(), os.environ)
    if not yes and not is_terminal():
        flags = ", ".join(f"{_flag(key)}={detected.get(key, '')}" for key in _QUESTIONS)
        raise UsageError(
            f"this is not a terminal, so nothing can be asked; expected --yes, with flags for the "
            f"answers that differ from the detected ones: {flags}"
        )
    answers = _answers(given, detected, yes=yes)
    if (
        not yes
        and path.exists()
        and not click.confirm(f"{path} exists. Replace it (kept as {path.name}.bak)?")
    ):
        raise CsrunError(f"{path} exists and is unchanged; expected consent to replace it")
    return _test_and_write(path, answers, yes=yes)


def is_terminal() -> bool:
    """Return True if the user can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _administrators_site() -> LoadedSite:
    """Return the settings below the user's file: an answer that only repeats them is not written."""
    return load_site({}, Path(os.devnull))  # an empty file instead of those of the user and the project


def detect(below: LoadedSite, environment: Mapping[str, str]) -> dict[str, str]:
    """Return answers that are probably right, by key.

    Args:
        below: the settings without those of the user.
        environment: of the user.
    """
    site = below.site
    present = [each.name for each in schedulers() if each.presence(site, environment) != "absent"]
    runtimes: list[str] = [each for each in CONTAINERS if each != "none" and which(_PROGRAMS.get(each, each))]
    certs = Path(environment.get("HOME", "/"), ".config", "csrun", "certs")
    image = environment.get("SINGULARITY_IMAGE", "") or site.container_image
    return {
        "launcher": site.launcher or next((name for name in present if name != LOCAL), LOCAL),
        "cs_ip": environment.get("CS_IP", "") or site.system_addresses,
        "certs": environment.get("CS_CERTS", "") or site.certs or (str(certs) if certs.is_dir() else ""),
        # A runtime without an image is no reason to use it.
        "container": site.container if site.container != "none" or not image else (runtimes or ["none"])[0],
        "container_image": image,
        "python": environment.get("CSRUN_PROGRAM_PYTHON", "") or site.python,
    }


_PROGRAMS = {"charliecloud": "ch-run"}


def _answers(given: Mapping[str, str | None], detected: Mapping[str, str], *, yes: bool) -> dict[str, Any]:
    """Return the values of the site file: of flags, of the user, or the detected ones."""
    answers: dict[str, Any] = {}
    for key, question in _QUESTIONS.items():
        uses_container = answers.get("container", "none") != "none"
        if (key == "container_image" and not uses_container) or (key == "python" and uses_container):
            continue
        text = given[key]
        if text is None and yes:
            text = detected[key]
        if text is None:
            text = click.prompt(
                question.format_map(_NAMES),
                default=detected[key],
                show_default=bool(detected[key]),
                value_proc=partial(_typed, key),
            )
        answers |= _parse(key, text)
    return answers


def _typed(key: str, text: str) -> str:
    """Return an answer of the user; click repeats the question after an error."""
    try:
        _parse(key, text)
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    return text


def _parse(key: str, text: str) -> dict[str, Any]:
    """Return an answer as settings.

    Raises:
        UsageError: it is not valid.
    """
    if key == "cs_ip" and "," in text:
        key = "systems"
    name = variables()[key][0]
    settings, _, errors = read_variables({name: text})
    if errors:
        problem = errors[0].removeprefix(f"the environment variable {name} is ").partition(": set it")[0]
        raise UsageError(f"{_flag(key)}: got {problem}")
    return settings or {key: ""}


def _test_and_write(path: Path, answers: Mapping[str, Any], *, yes: bool) -> int:
    below = _administrators_site()
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}\n"
        for key, value in answers.items()
        if below.values[key] != value
    ]
    text = "# Written by 'csrun config init'; 'csrun config show' explains it.\n" + "".join(lines)
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        # The doctor reads the answers, not the variables that they replace.
        for key in (*_QUESTIONS, "systems"):
            for name in variables()[key]:
                os.environ.pop(name, None)
        os.environ[SITE_CONFIG_VARIABLE] = str(new)
        works = True
        for finding in examine(None, "", None, probe=False):
            works = works and finding.level != "fail"
            write_text(STDOUT, line(finding, wants_color(STDOUT)).replace(str(new), str(path)))
        if not works and not yes and not click.confirm("A run would not work yet. Write the file?"):
            return EXIT_WOULD_FAIL
        if path.exists():
            path.replace(path.with_name(f"{path.name}.bak"))
        new.replace(path)
    except OSError as error:
        raise CsrunError(f"cannot write {path}: {error.strerror}; expected a writable directory") from error
    finally:
        new.unlink(missing_ok=True)
    write_text(STDOUT, f"\nwritten to {path}:\n{text}")
    return 0 if works else EXIT_WOULD_FAIL
