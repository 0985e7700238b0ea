"""`pip install 'cs-toolkit[EXTRA]'` from a wheel, and the main job outside of a checkout.

The environments have what the wheel asks for and nothing else: links to the packages of this one, so that
nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from cs_toolkit.errors import PACKAGES
from tests.systems import RunningSystem

ROOT = Path(__file__).resolve().parents[3]
SITE = Path(sysconfig.get_path("purelib"))
SOURCES = ("models", "configs", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")
LEFT_BY_A_RUN = "models/fc_mnist/tf/model_dir/cs_1/plan.py"

Environment = Callable[[str], Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as pip does, from a copy of the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    left_out = shutil.ignore_patterns("__pycache__", "model_dir", "*.egg-info")
    for name in (*PACKAGES, *SOURCES):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=left_out)
        else:
            shutil.copy(ROOT / name, tree / name)
    (tree / LEFT_BY_A_RUN).parent.mkdir(parents=True)
    (tree / LEFT_BY_A_RUN).touch()
    make = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    made = run([sys.executable, "-c", make, str(folder)], tree)
    return folder / made.splitlines()[-1]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Gives the environment with the wheel, and what it asks for with an extra; one at a time."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", str(wheel)]
    run([*install, "--quiet", "--no-deps", "--no-index", "--no-compile"], folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    (asked,) = (Distribution.at(path) for path in site.glob("cs_toolkit-*.dist-info"))

    def with_extra(extra: str) -> Path:
        for path in site.iterdir():
            if path.is_symlink():
                path.unlink()
        tops = {file.parts[0] for name in needed(asked, extra) for file in distribution(name).files or ()}
        for top in tops - {"..", "__pycache__"}:
            (site / top).symlink_to(SITE / top)
        return folder

    return with_extra


def needed(asked: Distribution, extra: str) -> set[str]:
    """Names of all distributions that an extra of a distribution brings, and theirs."""
    waiting, found = [(asked, frozenset([extra, ""]))], set[tuple[str, frozenset[str]]]()
    while waiting:
        one, extras = waiting.pop()
        for requirement in map(Requirement, one.requires or ()):
            key = re.sub(r"[-_.]+", "-", requirement.name).lower(), frozenset(requirement.extras)
            marker = requirement.marker
            if key not in found and (
                not marker or any(marker.evaluate({"extra": wanted}) for wanted in extras)
            ):
                found.add(key)
                waiting.append((distribution(key[0]), frozenset({*requirement.extras, ""})))
    return {name for name, _ in found}


def run(words: list[str], folder: Path, **variables: str) -> str:
    """Run a command without modules and variables of this environment, and return its output."""
    kept = ("HOME", "LANG", "TMPDIR", "XDG_", "XLA_FLAGS")
    clean = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    done = subprocess.run(
        words,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **clean, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_the_examples_as_they_are(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        prefix = "csrun/examples/"
        packed = {
            name.removeprefix(prefix): archive.read(name)
            for name in archive.namelist()
            if name.startswith(prefix)
        }
        tops = {name.partition("/")[0] for name in archive.namelist()}
    ours = {
        str(path.relative_to(ROOT / "models")): path.read_bytes()
        for path in (ROOT / "models").rglob("*")
        if path.suffix in (".csv", ".json", ".py", ".yaml") and "model_dir" not in path.parts
    }
    assert packed == ours
    assert {name for name in tops if not name.startswith("cs_toolkit-")} == set(PACKAGES)


@pytest.mark.parametrize("extra", ["tf", "torch"])
def test_the_main_job_runs_with_nothing_but_an_extra(
    extra: str, environment: Environment, system: RunningSystem, tmp_path: Path
) -> None:
    installed = environment(extra)
    path = f"{installed / 'bin'}:/usr/bin:/bin"
    copied = json.loads(run(["csrun", "init", "fc_mnist", "--json"], tmp_path, PATH=path))
    assert copied["framework"] == extra, "that of the extra"
    words = ["csrun_cpu", "python", copied["run"], "-p", copied["params"][0], f"--cs_ip={system.address}"]
    run([*words, "--mode=train", "--max_steps=3"], tmp_path, PATH=path)
    model_dir = (tmp_path / copied["run"]).with_name("model_dir")
    assert json.loads((model_dir / "run_summary.json").read_text())["last_step"] == 3
    assert list(model_dir.glob("*3.index" if extra == "tf" else "checkpoint_3.mdl"))
    kernels = (next(model_dir.glob("cs_*")) / "compile_report.json").read_text()
    assert str(tmp_path / "models/fc_mnist") in kernels, "the lines are those of the copy"
