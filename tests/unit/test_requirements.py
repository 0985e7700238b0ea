"""The toolkit imports exactly the packages that `pip install 'cs-toolkit[EXTRA]'` installs."""

from __future__ import annotations

import re
import sys
from configparser import RawConfigParser
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from cs_toolkit.errors import PACKAGES
from csrun.missing_modules import FRONT_ENDS

ROOT = Path(__file__).resolve().parents[2]
AREAS = {
    "tf": (
        "*/tf",
        "cgc/importers/tensorflow",
        "cs_compat/tensorflow",
        "estimator",
        "input_analyzer/function_program.py",  # a function of the user's that returns a dataset
        "models/*/tf",
    ),
    "s3": ("cs_toolkit/object_store.py",),
    "torch": (
        "*/torch",
        "cs_compat/appliance/storage.py",
        "cerebras_pytorch",
        "cerebras_torch",
        "cgc/importers/aten",
        "cstorch",
        "models/*/pytorch",
    ),
}
"""Where an extra is needed; everything else runs without one."""

ONLY_IF_THERE = {"cerebras", "tf_keras"}
"""Modules that the launchers bring, and that a program brings."""

OURS = {*PACKAGES, "models", "params"}

NOT_IMPORTED = {
    "flatbuffers": "by jax.export, which does not ask for it",
    "scikit-learn": "the digits of FC-MNIST are read from its file",
    "tensorboard": "for the user to look at what was trained",
}


_distributions = cache(packages_distributions)  # half a second: not while tests are collected


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(section: str, option: str) -> set[str]:
    settings = RawConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = settings[section][option].split("\n")
    return {normal(re.split(r"[<>=!\[; ]", line)[0]) for line in lines if line.strip()}


REQUIRED = {
    "": required("options", "install_requires"),
    **{extra: required("options.extras_require", extra) for extra in AREAS},
}


IMPORT = re.compile(r"^ *(?:from (\w+)[\w.]* import|import (\w+))\b", re.MULTILINE)


def imported(path: Path) -> set[str]:
    """Read as text, which is ten times as fast as parsing a thousand files."""
    return {first or second for first, second in IMPORT.findall(path.read_text(encoding="utf-8"))}


@cache
def having(module: str) -> set[str]:
    """Distributions that have a module."""
    return set(map(normal, _distributions().get(module, ())))


@pytest.fixture(scope="module")
def imports() -> dict[str, dict[str, Path]]:
    """Foreign modules by the extra whose code imports them, each with a file that does."""
    area = {path: extra for extra, roots in AREAS.items() for root in roots for path in ROOT.glob(root)}
    found: dict[str, dict[str, Path]] = {"": {}, **{extra: {} for extra in AREAS}}
    for top in (*PACKAGES, "models"):
        for path in (ROOT / top).rglob("*.py"):
            if "model_dir" in path.parts:
                continue
            extra = next((area[parent] for parent in (path, *path.parents) if parent in area), "")
            for name in imported(path) - OURS - ONLY_IF_THERE - sys.stdlib_module_names:
                found[extra][name] = path
    return found


@pytest.mark.parametrize("extra", ["", *AREAS])
def test_every_import_is_asked_for(extra: str, imports: dict[str, dict[str, Path]]) -> None:
    asked = REQUIRED[""] | REQUIRED[extra]
    for name, path in imports[extra].items():
        assert asked & having(name), (
            f"{path.relative_to(ROOT)} imports {name}; expected it in setup.cfg, for [{extra}]"
        )


def test_nothing_is_asked_for_that_is_not_imported(imports: dict[str, dict[str, Path]]) -> None:
    used = {extra: set[str]().union(*map(having, names)) for extra, names in imports.items()}
    everywhere = set[str]().union(*used.values())
    assert not REQUIRED[""] - everywhere - set(NOT_IMPORTED)
    for extra in AREAS:
        assert not REQUIRED[extra] - used[extra] - set(NOT_IMPORTED), extra


def test_a_missing_module_is_reported_with_the_extra_that_installs_it() -> None:
    for module, extra in FRONT_ENDS.items():
        assert {one for one in AREAS if REQUIRED[one] & having(module)} == {extra}, module
