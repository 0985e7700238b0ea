"""The names that programs for the original stack import: inside the launchers all of them, outside none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

import pytest

from cs_compat import startup
from csrun.wrappers import BIN

CHECK = str(Path(__file__).parent / "check_names.py")
CHECK_PYTHON_KERAS = str(Path(__file__).parent / "check_python_keras.py")
Command = Callable[..., CompletedProcess[str]]

NAMES = "import cerebras.tf, cerebras.pb; print('found')"

DATASET = "return tf.data.Dataset.from_tensors(([1.0], [0])).repeat()"
PROGRAM = """
import estimator
import tensorflow as tf
config = estimator.CSRunConfig({cs_ip!r})
def input_fn():
    {body}
def model_fn(features, labels, mode):
    return None
estimator.CerebrasEstimator(model_fn, "model_dir", config=config).train(input_fn, steps=1)
"""
ENDINGS = {
    "no system": ("127.0.0.1:1", DATASET, 1, "error: no CS system answers at 127.0.0.1:1", False),
    "no dataset": ("127.0.0.1:1", "return None", 2, "error: input_fn returned None", False),
    "own error": (
        "127.0.0.1:1",
        "raise KeyError('no such file')",
        1,
        "error: KeyError: 'no such file'",
        True,
    ),
    "streaming": ("127.0.0.1:1", "import tfwse", 1, "run the program with python-ws", True),
}
"""By name: address and body, exit code, text of the last line, and whether there is a traceback."""


@pytest.fixture(scope="module")
def told(
    run_in: Callable[[Path], Command],
    run_programs: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[str]]:
    """Lines of programs in which nothing was chosen before TensorFlow was imported."""
    directory = tmp_path_factory.mktemp("told")
    programs = {"names": [CHECK], "python keras": [CHECK_PYTHON_KERAS]}
    for name, (cs_ip, body, *_) in ENDINGS.items():
        (directory / f"{name}.py").write_text(PROGRAM.format(cs_ip=cs_ip, body=body))
        programs[name] = [f"{name}.py"]
    codes = {name: code for name, (_, _, code, *_) in ENDINGS.items()}
    logs = run_programs(run_in(directory), ["csrun_cpu"], directory, programs, codes=codes)
    return {name: log["chief-0"].splitlines() for name, log in logs.items()}


def test_all_names_exist_as_programs_use_them(told: dict[str, list[str]]) -> None:
    assert told["names"][-1] == "Keras tf_keras python"
    assert len([line for line in told["names"] if line.startswith("check_")]) == 6


def test_python_keras_is_the_keras_of_tensorflow(told: dict[str, list[str]]) -> None:
    assert told["python keras"][-1] == "tf_keras"
    assert len([line for line in told["python keras"] if line.startswith("check_")]) == 6


def test_python_keras_is_keras_3_where_that_is_chosen(command: Command) -> None:
    result = command("csrun_cpu", "python", CHECK_PYTHON_KERAS, TF_USE_LEGACY_KERAS="0")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "keras"
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("environment", "imported", "found", "chosen"),
    [
        ({}, [], "a spec", "1"),
        ({}, [], None, None),
        ({}, ["keras"], "a spec", None),
        ({"TF_USE_LEGACY_KERAS": "0"}, [], "a spec", "0"),
        ({"TF_USE_LEGACY_KERAS": ""}, [], "a spec", ""),
    ],
)
def test_keras_is_that_of_the_time_unless_the_user_or_the_program_has_another(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    imported: list[str],
    found: str | None,
    chosen: str | None,
) -> None:
    monkeypatch.setattr(startup.os, "environ", environment)
    monkeypatch.setattr(startup.sys, "modules", dict.fromkeys(imported))
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: found)
    startup.choose_keras(ModuleType("tensorflow"))
    assert environment.get("TF_USE_LEGACY_KERAS") == chosen


@pytest.mark.parametrize("interpreter", ["python", "python3"])
def test_the_names_are_in_every_task_of_a_job(command: Command, interpreter: str) -> None:
    result = command("csrun_wse", "--tasks-per-node=2", interpreter, "-c", NAMES)
    assert result.stdout.count("found") == 2, result.stderr


def test_nothing_of_it_leaks() -> None:
    """Into the environment that pip installs into."""
    for code in ("import cerebras", "import tensorflow_estimator", "import sitecustomize as s; s.start"):
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert result.returncode == 1, code


def test_an_install_has_the_wrappers_and_no_new_top_level_name() -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[3] / "setup.cfg")
    assert setup["options.package_data"]["csrun.wrappers"].split() == ["bin/*"]
    assert all(os.access(BIN / name, os.X_OK) for name in ("python", "python3", "python-pt", "python-ws"))
    assert not {"cerebras*", "tensorflow_estimator*", "*"} & set(
        setup["options.packages.find"]["include"].split()
    )
    # The folder is found as a package of cs_compat, so that pip installs it.
    modules = Path(startup.__file__).parent / "modules"
    assert {path.name for path in modules.glob("*.py")} == {"__init__.py", "sitecustomize.py"}


def test_other_interpreters_inside_the_launchers_do_not_see_it(command: Command) -> None:
    assert "No module named 'cerebras'" in command("csrun_cpu", sys.executable, "-c", NAMES).stderr


def test_scripts_children_and_shells_find_the_same_python(command: Command, tmp_path: Path) -> None:
    script = tmp_path / "a script"
    script.write_text(f"#!/usr/bin/env python3\n{NAMES}\n")
    script.chmod(0o755)
    assert command("csrun_cpu", "./a script").stdout == "found\n"
    assert command("csrun_cpu", "sh", "-c", f'python -c "{NAMES}"').stdout == "found\n"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', \"" + NAMES + '"], check=True)'
    assert command("csrun_cpu", "python", "-c", child).stdout == "found\n"
    nested = str(Path(__file__).parents[3] / "bin" / "csrun_cpu")
    assert command("csrun_cpu", nested, "python", "-c", NAMES).stdout == "found\n"


def test_modules_that_a_script_adds_inside_are_found_and_so_is_its_sitecustomize(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("print('mine')")
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    code = f'PYTHONPATH={tmp_path} python -c "import mine; {NAMES}"'
    assert command("csrun_cpu", "sh", "-c", code).stdout == "customized\nmine\nfound\n"


@pytest.mark.parametrize("interpreter", ["python", "python-pt", "python-ws"])
def test_other_packages_share_the_name_cerebras(command: Command, tmp_path: Path, interpreter: str) -> None:
    """The packages are on PYTHONPATH, an editable install, in a folder added later, or in their own."""
    places = {"modelzoo": "src", "editable": "elsewhere", "later": "late", "own": "."}
    for name, place in places.items():
        portion = tmp_path / place / "cerebras" / name
        portion.mkdir(parents=True)
        (portion / "__init__.py").write_text(f"NAME = {name!r}")
    # A package in the program's folder would replace ours where it has an __init__.py.
    (tmp_path / "cerebras" / "__init__.py").touch()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "editable.pth").write_text(str(tmp_path / "elsewhere"))
    (tmp_path / "program.py").write_text(
        "import site, sys; site.addsitedir('site')\n"
        "import cerebras.modelzoo, cerebras.editable, cerebras.own, cerebras.tf, cerebras.pb\n"
        "sys.path.append('late')\n"
        "from cerebras import later\n"
        "print(cerebras.modelzoo.NAME, cerebras.editable.NAME, later.NAME, cerebras.own.NAME)\n"
    )
    for launcher, *flags in (["csrun_cpu"], ["csrun_wse", "--tasks-per-node=2"]):
        result = command(launcher, *flags, interpreter, "program.py", PYTHONPATH="src")
        assert result.stdout.count("modelzoo editable later own") == max(1, 2 * len(flags)), result.stderr


def test_the_command_of_the_model_zoo_is_a_word_of_the_launchers(command: Command, tmp_path: Path) -> None:
    """It finds its package on PYTHONPATH, and gives packages that are missing a placeholder."""
    package = tmp_path / "src" / "cerebras" / "modelzoo" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(
        "import sys\nimport absent_evaluation.tasks\nimport cerebras.pytorch as cstorch\n"
        "def main():\n"
        "    print(*sys.argv, cstorch.__name__)\n"
        "    return 3 if len(sys.argv) > 2 else absent_evaluation.tasks.run()\n"
    )
    result = command("csrun_cpu", "cszoo", "fit", "params.yaml", PYTHONPATH="src")
    assert (result.returncode, result.stdout) == (3, "cszoo fit params.yaml cerebras.pytorch\n"), (
        result.stderr
    )
    assert "the package absent_evaluation is not installed" in result.stderr
    result = command("csrun_cpu", "cszoo", "lm_eval", PYTHONPATH="src")
    assert result.returncode == 1
    assert "error: No module named 'absent_evaluation'" in result.stderr


def test_the_appliance_has_two_names(command: Command) -> None:
    """The modules are the same under both names, and programs of TensorFlow load no PyTorch for them."""
    code = (
        "import sys, cerebras.appliance, cerebras_appliance; "
        "import cerebras_appliance.pb.common.cerebras_type_pb2 as types; "
        "from cerebras.appliance.utils.debug_args import DebugArgs; "
        "from cerebras_appliance.pb.workflow.appliance.common import common_config_pb2 as common; "
        "from cerebras.pb.stack.full_pb2 import FullConfig; "
        "from google.protobuf import json_format; "
        "config = FullConfig(); config.matching.autogen_policy = 2; "
        "text = json_format.MessageToJson(config, including_default_value_fields=False); "
        "assert json_format.Parse(text, FullConfig()) == config; "
        "assert cerebras.appliance is cerebras_appliance and common.DebugArgs is DebugArgs; "
        "print(types.T_CB16, text, sorted({'torch', 'tensorflow'} & sys.modules.keys()))"
    )
    result = command("csrun_cpu", "python", "-c", code)
    assert result.stdout == '2 {"matching": {"autogen_policy": 2}} []\n', result.stderr
    same = (
        "from cerebras.pb.stack import autogen_pb2; "
        "from cerebras_pytorch.pb.stack.autogen_pb2 import AP_DISABLED; "
        "assert AP_DISABLED is autogen_pb2.AP_DISABLED"
    )
    result = command("csrun_cpu", "python", "-c", same)
    assert result.returncode == 0, result.stderr


def test_the_wrapper_by_itself_lists_its_requirements() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CSRUN_PYTHON"}
    result = subprocess.run(
        [BIN / "python", "-c", ""], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "CSRUN_PYTHON is not set; expected" in result.stderr


def test_python_ws_chooses_weight_streaming(command: Command) -> None:
    code = (
        "import importlib.util as u; from cs_toolkit.execution_options import default_execution; "
        "print(u.find_spec('tfwse') is not None, default_execution())"
    )
    assert command("csrun_cpu", "python-ws", "-c", code).stdout == "True weight_streaming\n"
    assert command("csrun_cpu", "python", "-c", code).stdout == "False auto\n"


def test_the_estimator_for_weight_streaming(command: Command) -> None:
    code = (
        "import tfwse; from cerebras.tf.ws.cs_estimator_ws import CerebrasEstimator; "
        "from cerebras.tf.run_config import CSRunConfig; "
        "config = CSRunConfig(execution='pipelined'); "
        "made = CerebrasEstimator(lambda features, labels, mode, params: None, 'model_dir', config); "
        "print(made.config.execution)"
    )
    assert command("csrun_cpu", "python-ws", "-c", code).stdout == "weight_streaming\n"


def test_tensorflow_programs_find_no_sparsifier_to_choose(command: Command) -> None:
    code = (
        "from cerebras.tf.ws.ws_sparsify import SPARSIFIER_MAP, get_AdamW_aware_sparsifier_class; "
        "print(len(SPARSIFIER_MAP), get_AdamW_aware_sparsifier_class(int)); SPARSIFIER_MAP['topk']"
    )
    ended = command("csrun_cpu", "python-ws", "-c", code)
    assert (ended.returncode, ended.stdout) == (2, "0 <class 'int'>\n")
    assert "got the sparsifier 'topk', expected none: train without sparsity" in ended.stderr


def test_python_pt_has_the_names_of_pytorch_programs_in_addition_to_the_others(command: Command) -> None:
    code = (
        "import importlib.util as u; import cerebras.framework.torch.core.cb_model as cm, cerebras.pb, sys; "
        "from torch_xla.utils.utils import SampleGenerator; "
        "from cerebras.framework.torch.utils.data.dataloader import DataLoader; "
        "import cerebras.framework.torch as cbtorch; "
        "import cerebras.framework.torch.optim.lr_scheduler as schedules; "
        "assert schedules.LRScheduler is cbtorch.optim.lr_scheduler.LRScheduler; "
        "assert cbtorch.core.cb_model is cm and cbtorch.data.DataLoader is DataLoader; "
        "assert [len(x) for x in SampleGenerator(data=[1, 2], sample_count=3)] == [2, 2, 2]; "
        "print(cm.use_cs(), u.find_spec('cerebras.tf') is not None, 'tensorflow' in sys.modules)"
    )
    assert command("csrun_cpu", "python-pt", "-c", code).stdout == "False True False\n"


@pytest.mark.parametrize("name", ENDINGS)
def test_expected_errors_of_programs_without_report_errors(told: dict[str, list[str]], name: str) -> None:
    """Their exit codes have been looked at when they ended."""
    *_, last, has_traceback = ENDINGS[name]
    assert last in told[name][-1]
    assert ("Traceback" in "\n".join(told[name])) is has_traceback
