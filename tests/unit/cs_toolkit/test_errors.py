"""One root of all errors, and the exit status that each leads to."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path

import pytest

import cs_toolkit
from cs_toolkit.errors import (
    EXIT_BUG,
    EXIT_FAILURE,
    EXIT_USAGE,
    PACKAGES,
    ToolkitError,
    UsageError,
    exit_code_of,
)

ROOT = Path(cs_toolkit.__file__).parents[1]


def errors_of(module: str) -> list[type[BaseException]]:
    """The errors that a module defines."""
    things = vars(importlib.import_module(module)).values()
    found = [thing for thing in things if isinstance(thing, type) and issubclass(thing, BaseException)]
    return [error for error in found if error.__module__ == module]


def error_modules() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("errors.py"):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("module", sorted(error_modules()))
def test_every_error_of_every_package_has_the_root(module: str) -> None:
    found = errors_of(module)
    assert found
    for error in found:
        assert issubclass(error, ToolkitError), error


def test_no_name_means_two_errors_of_the_user() -> None:
    names = [error.__name__ for module in error_modules() for error in errors_of(module)]
    assert {
        name for name in names if names.count(name) > 1 and name in ("UsageError", "DynamicShapeError")
    } == set()


def test_the_packages_are_those_of_the_checkout_and_of_the_wheel() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(PACKAGES) == found - {"tests", "models", "benchmarks", "scripts"}
    packaged = (ROOT / "setup.cfg").read_text().partition("[options.packages.find]")[2].partition("\n[")[0]
    assert {f"{package}*" for package in PACKAGES} <= set(packaged.split())


@pytest.mark.parametrize(
    ("section", "option", "word"),
    [
        ("tool:pytest", "filterwarnings", "error:::{}"),
        ("mypy", "packages", "{}"),
        ("importlinter", "root_packages", "{}"),
        ("importlinter:contract:floors", "layers", "{}"),
    ],
)
def test_every_package_is_checked(section: str, option: str, word: str) -> None:
    settings = RawConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = settings[section][option].replace(",", " ").split()
    assert {word.format(package) for package in PACKAGES} <= set(listed)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_bug_of_any_package_ends_with_3(package: str) -> None:
    file = str(ROOT / package / "somewhere.py")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", file, "exec"), {})
    assert exit_code_of(caught.value) == EXIT_BUG


def test_exit_codes() -> None:
    assert exit_code_of(ToolkitError()) == EXIT_FAILURE
    assert exit_code_of(UsageError()) == EXIT_USAGE
    assert exit_code_of(KeyError()) == EXIT_FAILURE  # of the user's program
