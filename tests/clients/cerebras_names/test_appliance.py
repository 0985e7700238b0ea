"""A TensorFlow program of the appliance generation, through the launchers."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.systems import RunningSystem

PROGRAM = str(Path(__file__).parent / "program" / "appliance.py")
Command = Callable[..., CompletedProcess[str]]


RUNS = {
    "pipelined": ("CSX", "pipeline"),
    "weight_streaming": ("CSX", "weight_streaming"),
    "CPU": ("CPU",),
}

WITHOUT_A_SYSTEM = """
import os, runpy, sys
del os.environ["CS_IP"]
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def logs(
    run_in: Callable[[Path], Command],
    run_programs: Callable[..., Any],
    system: RunningSystem,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """Return the output of the program by name of a run; the address comes from the program or the site."""
    directory = tmp_path_factory.mktemp("appliance")
    (directory / "without.py").write_text(WITHOUT_A_SYSTEM)
    address = {"pipelined": [f"--mgmt_address={system.address}"]}
    programs = {
        name: [PROGRAM, *arguments, *address.get(name, ()), f"--model_dir={name}_dir"]
        for name, arguments in RUNS.items()
    }
    programs["without"] = ["without.py", PROGRAM, "CSX", "--model_dir=without_dir"]
    launch = partial(run_in(directory), CS_IP=system.address)
    found = run_programs(launch, ["csrun_cpu"], directory, programs)
    return {name: tasks["chief-0"] for name, tasks in found.items()}


def test_it_trains_and_evaluates_on_the_system_and_on_this_cpu(logs: dict[str, str]) -> None:
    """The same losses everywhere."""
    losses = {}
    for name in RUNS:
        assert "branch wheel" in logs[name]
        found = [line.split() for line in re.findall(r"^\w+ \d+ \d\.\d+ True$", logs[name], re.MULTILINE)]
        assert [step for _, step, _, _ in found] == ["0", "2", "4"]
        assert found[0][0] == (name if name != "CPU" else "pipelined")
        losses[name] = [float(loss) for _, _, loss, _ in found]
    assert losses["pipelined"] == pytest.approx(losses["CPU"], abs=2e-4)
    assert losses["weight_streaming"] == pytest.approx(losses["CPU"], abs=2e-4)


def test_the_log_says_where_it_runs_and_why(logs: dict[str, str], system: RunningSystem) -> None:
    assert f"training on the CS system at {system.address} (--mgmt_address)" in logs["pipelined"]
    assert f"training on the CS system at {system.address} (CS_IP)" in logs["weight_streaming"]
    assert "training on this CPU (use_cs=False)" in logs["CPU"]
    assert "training on an embedded simulated CS system (no address: pass --cs_ip" in logs["without"]
