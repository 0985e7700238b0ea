"""The documents: commands that exist, programs that compile, links that lead somewhere, lines that fit."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import click
import pytest

from cgc.tools.opt import main as cgc_opt
from cgc.tools.report import main as cgc_report
from cs_system.commands import main as cs_system
from cs_toolkit.errors import PACKAGES
from csrun.commands import cpu, csrun, wse
from csrun.site import Site
from cstorch.v1.runner import settings as runner_flags
from input_analyzer import commands as analyzer
from models.common.tf.params import Params
from models.common.tf.program import Program

from .pages import ROOT, Command, anchor, commands, name, pages, python_blocks

WIDTH = 100
README_LINES = 151
PICTURE_BYTES = 200_000
LAUNCHERS = ("csrun_cpu", "csrun_wse", "cs_input_analyzer")
SAMPLES = {"/scratch": "/tmp", "IP:PORT": "127.0.0.1:9000"}
"""What a reader puts in the place of a word."""

COMMANDS: dict[str, Callable[[], click.Command]] = {
    "cgc-opt": lambda: cgc_opt,
    "cgc-report": lambda: cgc_report,
    "cs_input_analyzer": lambda: analyzer.build_command(Site()),
    "cs_system": lambda: cs_system,
    "csrun": csrun.build_command,
    "csrun_cpu": lambda: cpu.build_command(Site()),
    "csrun_wse": lambda: wse.build_command(Site()),
}
ALL_PAGES = pytest.mark.parametrize("page", pages(), ids=name)


def ours(command: Command) -> bool:
    return Path(command.words[0]).name in COMMANDS


@cache
def example_program() -> Program:
    """The command line of the examples, which `run.py` of a page also means."""
    return Program(None, ROOT, "params.yaml", Params, "")


@patch.dict(os.environ)  # --certs sets a variable
def parse(command: Command) -> None:
    """Raises, or ends the process as the program would, where the words are no command line of it."""
    context = COMMANDS[Path(command.words[0]).name]().make_context("", list(map(sampled, command.words[1:])))
    while isinstance(group := context.command, click.Group):
        _, found, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        context = found.make_context("", rest, parent=context)
    if Path(command.words[0]).name in LAUNCHERS:
        parse_program(list(context.params["command"]))


def sampled(word: str) -> str:
    for placeholder, sample in SAMPLES.items():
        word = word.replace(placeholder, sample)
    return word


def parse_program(words: list[str]) -> None:
    """The program after a launcher, as `run.py` of the examples reads its command line."""
    python, *rest = words
    if not rest:
        assert re.fullmatch(r"[\w/.]+\.py:\w+", python), python  # a function for the analyzer
        return
    if python == "cszoo":
        return  # the command of another project
    assert python in ("python", "python-ws", "python-pt"), python
    script, *arguments = rest
    if script == "-c":
        return
    assert script.startswith("run.py") or (ROOT / script).is_file(), script
    if not arguments and script == "run.py":
        return  # a program whose settings are in its code
    if "pytorch" not in script:
        example_program().parse_arguments(arguments)
    elif "gpt2" in script:
        import_module("models.gpt2.pytorch.run").parse_arguments(arguments)
    else:
        runner_flags.parse(ROOT, None, arguments)
    for word in arguments:
        assert not word.endswith(".yaml") or (ROOT / word).is_file(), word


@ALL_PAGES
def test_commands_are_commands_of_ours(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words and flags are parsed; that the commands do what they say is what other tests run them for.

    `tests/clients/fc_mnist/test_commands.py` runs those of the README, `tests/clients`, `tests/slurm` and
    `tests/unit` those of the guides.
    """
    monkeypatch.setattr("sys.argv", ["run.py"])
    wrong = []
    for command in filter(ours, commands(page)):
        try:
            parse(command)
        except (click.ClickException, SystemExit, AssertionError) as error:
            wrong.append(f"{command}: {getattr(error, 'message', error)!r}")
    assert not wrong, "\n".join(wrong)


@ALL_PAGES
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {words[1] for command in commands(page) if (words := command.words)[0] == "make" and words[1:]}
    assert named | set(re.findall(r"`make ([a-z]+)`", page.read_text())) <= targets


def test_the_check_of_commands_finds_what_is_wrong() -> None:
    for words in (
        ("csrun_wse", "--total-node=3", "python", "run.py"),
        ("csrun", "statuses"),
        ("cs_system", "serve", "--hosts=0.0.0.0"),
        ("csrun_cpu", "python", "run.py", "--mode=trian"),
        ("csrun_cpu", "python", "models/none/run.py"),
    ):
        with pytest.raises((click.ClickException, SystemExit, AssertionError)):
            parse(Command("page", 1, words))


@ALL_PAGES
def test_python_compiles_and_imports_what_there_is(page: Path) -> None:
    for block in python_blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module:
                home = import_module(node.module) if node.module.split(".")[0] in PACKAGES else None
                for alias in node.names:
                    assert home is None or hasattr(home, alias.name), f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    assert find_spec(alias.name) is not None, alias.name


def anchors(page: Path) -> set[str]:
    """The fragments that headings can be reached by."""
    return set(map(anchor, re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)))


@ALL_PAGES
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, fragment = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not fragment or fragment in anchors(file), target


def test_pages_that_messages_and_sources_name_exist() -> None:
    """The path of a page in a message, a comment or a script leads to that page."""
    folders = (*PACKAGES, "benchmarks", "configs", "models", "scripts", "tests", ".github")
    files = [
        ROOT / "Makefile",
        *pages(),
        *(file for folder in folders for file in (ROOT / folder).rglob("*.*")),
    ]
    named = {
        (page, name(file))
        for file in files
        if file.suffix in ("", ".md", ".py", ".service", ".txt", ".yaml", ".yml") and file.is_file()
        for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md\b", file.read_text(errors="replace"))
    }
    assert len(named) > 40
    assert not {(page, file) for page, file in named if not (ROOT / page).is_file()}


@pytest.mark.parametrize("page", [*pages(), ROOT / "CHANGELOG.md"], ids=name)
def test_lines_fit(page: Path) -> None:
    """Rows of tables cannot be broken in Markdown."""
    long = [
        f"{name(page)}:{number}: {len(line)}"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > WIDTH and not line.startswith("|")
    ]
    assert not long


def test_the_readme_is_short_and_shows_pictures_of_modest_size() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= README_LINES
    pictures = [ROOT / target for target in re.findall(r"!\[[^]]*\]\(([^)]+\.png)\)", readme.read_text())]
    assert len(pictures) == 2
    assert all(0 < picture.stat().st_size < PICTURE_BYTES for picture in pictures)


def test_messages_of_the_page_on_troubles_are_messages_of_ours() -> None:
    """The text between `...` in a heading is in one string of our sources."""
    sources = "".join(
        file.read_text() for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))
    )
    page = (ROOT / "docs" / "reference" / "troubleshooting.md").read_text()
    heads = re.findall(r"\*\*`([^`]+)`\*\*", page)
    assert len(heads) > 40
    parts = [part.strip() for head in heads for part in head.split("...")]
    unknown = [part for part in parts if len(part) > 3 and part not in sources]
    assert not unknown
