"""csrun init: the list of examples, and the files of a copy."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from cs_toolkit.errors import UsageError
from csrun.commands import init as command
from csrun.commands.csrun import build_command
from csrun.commands.init import FRAMEWORKS, FilesInTheWayError, Program, copy, programs, source_folder
from csrun.errors import CsrunError

SOURCE = source_folder()
PROGRAMS = programs(SOURCE)
SHARED = "models/common/data.py"

Init = Callable[..., str]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Init:
    """Run `csrun init` in an empty directory; return its stdout."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        capfd.readouterr()
        assert build_command().main(["init", *words], standalone_mode=False) == 0
        return capfd.readouterr().out

    return run


def installed(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: name if name in modules else None)


def test_it_lists_the_examples(init: Init) -> None:
    lines = init().splitlines()
    assert "fc_mnist      tf, torch  FC-MNIST: 784 inputs, hidden layers" in "\n".join(lines)
    names = {path.parents[1].name for path in SOURCE.glob("*/*/run.py")}
    assert {line.split()[0] for line in lines[:-2]} == names > {"bert", "gpt2", "resnet", "unet"}
    assert "unet" not in init("--list", "--framework=torch")
    listed = json.loads(init("--list", "--json"))
    (unet,) = [one for one in listed if one["example"] == "unet"]
    assert unet["run"] == "models/unet/tf/run.py"
    assert unet["params"][0] == "models/unet/tf/configs/params_unet_tiny.yaml"
    assert len(unet["params"]) == 3


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.example}-{program.framework}")
def test_a_copy_has_all_that_it_imports(program: Program, tmp_path: Path) -> None:
    copy(SOURCE, program, tmp_path, force=False)
    assert "\nsys.path.insert(1, " in (tmp_path / program.run).read_text(), "before all but its own folder"
    assert program.params
    assert all((tmp_path / path).is_file() for path in program.params)
    files = list(tmp_path.rglob("*.py"))
    own = {path.stem for path in files if path.parent == (tmp_path / program.run).parent}
    for path in files:
        for module in imported(path):
            assert module not in own or (path.parent / f"{module}.py").is_file(), module
            if module.startswith("models."):
                assert (tmp_path / f"{module.replace('.', '/')}.py").is_file(), f"{path} imports {module}"
    left_out = {"tf", "pytorch"} - {FRAMEWORKS[program.framework]}
    assert not [path for path in files if path.parent.name in left_out]


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports; `from models.common.tf import params` imports a module too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if (SOURCE.parent / node.module.replace(".", "/")).is_dir() and node.module.startswith("models"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_a_copy_imports_from_itself(init: Init, tmp_path: Path) -> None:
    """Also where a launcher of a checkout runs it, which puts the checkout on the import path."""
    run = json.loads(init("fc_mnist", "--json", "--framework=tf"))["run"]
    (tmp_path / "models/common/tf/params.py").write_text("raise SystemExit('mine')\n")
    env = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, run], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == "mine\n"


def test_a_copy_omits_files_of_runs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("common/data.py", "net/tf/run.py", "net/tf/model.py", "net/tf/model_dir/params.yaml"):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""A network."""\n')
    (program,) = programs(source)
    assert program.description == "A network."
    assert {str(path) for path in copy(source, program, tmp_path / "new", force=False)} == {
        "models/common/data.py", "models/net/tf/model.py", "models/net/tf/run.py",
    }  # fmt: skip


def test_files_of_the_user_are_kept(init: Init, tmp_path: Path) -> None:
    init("fc_mnist")
    changed = tmp_path / SHARED
    changed.write_text("mine = 1\n")
    with pytest.raises(FilesInTheWayError, match=rf"has {SHARED} already.*nothing was written.*--force"):
        init("unet")
    assert not (tmp_path / "models/unet").exists()
    assert changed.read_text() == "mine = 1\n"
    assert "files written" in init("unet", "other")  # another directory
    assert json.loads(init("fc_mnist", "--force", "--json"))["written"] == [SHARED]
    assert changed.read_bytes() == (SOURCE / "common/data.py").read_bytes()
    assert "all files exist already" in init("fc_mnist")


def test_it_prints_the_next_commands(init: Init) -> None:
    told = init("gpt2", "my project")
    assert "cd 'my project'" in told
    assert "python models/gpt2/tf/run.py --mode=train --cs_ip=127.0.0.1:9000" in told
    assert "params_gpt2_small.yaml" in told
    told = init("fc-mnist", "--framework=torch")
    assert "run.py -p models/fc_mnist/pytorch/configs/params_fc_mnist.yaml --mode=eval" in told


def test_the_framework_is_the_installed_one(
    init: Init, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, "torch")
    assert "fc_mnist for PyTorch" in init("fc_mnist", "a")
    assert "unet for TensorFlow" in init("unet", "b")
    installed(monkeypatch)
    build_command().main(["init", "fc_mnist", "c"], standalone_mode=False)
    assert "pip install 'cs-toolkit[tf]'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ffc_mnit",), "unknown example 'ffc_mnit'; did you mean fc_mnist? (all examples: csrun init)"),
        (("xyz",), "unknown example 'xyz'; expected one of: bert, fc_mnist, "),
        (("unet", "--framework=torch"), "'unet' exists only for --framework=tf; examples for torch: bert"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(init: Init, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        init(*words)
    assert said in str(caught.value)


def test_a_place_that_cannot_be_written_is_named(init: Init, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(CsrunError, match=r"cannot write models.*: .*; expected a writable directory"):
        init("fc_mnist")
    with pytest.raises(click.BadParameter, match="is a file"):
        init("fc_mnist", "models")
