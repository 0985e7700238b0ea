"""csrun pip, on a new environment with packages made here."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

BIN = Path(__file__).parents[4] / "bin"
Command = Callable[..., subprocess.CompletedProcess[str]]


def make_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """A package with one module of its name."""
    info = f"{name}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {n}" for n in needs),
    ]
    files = {
        f"{name}.py": f"version = '{version}'\n",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, content in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(file, content)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An interpreter with a toolkit that uses `pinned` 1.0, and the folder of packages to install."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    wheels = folder / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "cs_toolkit", "0.1.0", "pinned[more]>=1 ; extra == 'tf'", "tester>=1 ; extra == 'zoo'")
    make_wheel(wheels, "pinned", "1.0", "helper ; extra == 'more'", "tester ; extra == 'testing'")
    for version in ("1.0", "2.0"):
        make_wheel(wheels, "helper", version)
        make_wheel(wheels, "tester", version)
    make_wheel(wheels, "pinned", "2.0")
    make_wheel(wheels, "added", "3.0", "pinned")
    make_wheel(wheels, "demanding", "4.0", "pinned>=2")
    make_wheel(wheels, "cerebras_pytorch", "2.10.0")
    make_wheel(wheels, "written_for_it", "1.0", "cerebras_pytorch==2.10.0")
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--no-index", f"--find-links={wheels}"]
    packages = ["cs_toolkit", "pinned==1.0", "helper==1.0", "tester==1.0"]
    subprocess.run([*pip, *packages], check=True, capture_output=True)
    return python, wheels


@pytest.fixture
def command(environment: tuple[Path, Path], tmp_path: Path) -> Command:
    variables = {
        **os.environ,
        "CSRUN_PROGRAM_PYTHON": str(environment[0]),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(environment[1]),
        "XDG_CONFIG_HOME": str(tmp_path),
    }

    def run(program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / program), *arguments],
            env={**variables, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_a_missing_package_is_named_added_and_found(command: Command) -> None:
    missing = command("csrun_cpu", "python", "-c", "import added.part")
    assert missing.returncode == 1
    assert "there is no module 'added' in the environment of programs" in missing.stderr
    assert "csrun pip install added" in missing.stderr
    installed = command("csrun", "pip", "install", "added")
    assert installed.returncode == 0, installed.stderr
    found = command("csrun_cpu", "python", "-c", "import added, pinned; print(added.version, pinned.version)")
    assert found.stdout == "3.0 1.0\n"
    assert "added" in command("csrun", "pip", "list").stdout


def test_packages_of_the_toolkit_keep_their_versions(command: Command) -> None:
    refused = command("csrun", "pip", "install", "demanding")
    assert refused.returncode == 1
    assert "Packages of the toolkit keep their versions" in refused.stderr
    listed = command("csrun", "pip", "list", "--format=freeze").stdout.split()
    assert "pinned==1.0" in listed
    assert not any(line.startswith("demanding") for line in listed)


def test_packages_of_an_extra_that_is_used_keep_their_versions_and_those_of_tests_do_not(
    command: Command,
) -> None:
    refused = command("csrun", "pip", "install", "helper==2.0")
    assert refused.returncode != 0
    assert "Packages of the toolkit keep their versions" in refused.stderr
    changed = command("csrun", "pip", "install", "tester==2.0")
    assert changed.returncode == 0, changed.stderr


def test_no_package_takes_a_name_of_the_toolkit(command: Command) -> None:
    """Guides begin with it, and a requirement of the Model Zoo names it."""
    for asked in (
        ["cerebras_pytorch==2.10.0"],
        ["--no-deps", "cerebras-pytorch"],
        ["added", "Cerebras_Pytorch"],
    ):
        refused = command("csrun", "pip", "install", *asked)
        assert refused.returncode == 1
        assert "the toolkit has the modules of cerebras_pytorch itself" in refused.stderr
        assert f"expected a command without {asked[-1]}" in refused.stderr
        assert "pip install" not in refused.stderr
    refused = command("csrun", "pip", "install", "written_for_it")
    assert refused.returncode == 1
    assert "that requires 'cerebras_pytorch' with the toolkit" in refused.stderr
    assert command("csrun", "pip", "install", "--no-deps", "written_for_it").returncode == 0


def test_packages_of_an_image_are_not_for_pip(command: Command) -> None:
    refused = command("csrun", "pip", "list", CSRUN_CONTAINER="apptainer", SINGULARITY_IMAGE="/image.sif")
    assert refused.returncode == 1
    assert "added to the image" in refused.stderr


def test_an_interpreter_that_is_not_there(command: Command) -> None:
    pip = command("csrun", "pip", "list", CSRUN_PROGRAM_PYTHON="/nowhere/python")
    assert pip.returncode == 1
    assert "cannot run /nowhere/python: No such file or directory; expected the interpreter" in pip.stderr
    program = command("csrun_cpu", "python", "-V", CSRUN_PROGRAM_PYTHON="/nowhere/python")
    assert program.returncode == 127
    assert "no interpreter /nowhere/python" in program.stderr
