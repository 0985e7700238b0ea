"""A TensorFlow program of the appliance generation, through the launchers."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from cs_system.testing import RunningSystem

PROGRAM = str(Path(__file__).parent / "program" / "appliance.py")
Command = Callable[..., CompletedProcess[str]]


def test_it_trains_and_evaluates_on_the_system_and_on_this_cpu(
    command: Command, run_programs: Callable[..., Any], system: RunningSystem, tmp_path: Path
) -> None:
    """The same losses everywhere; the address may come from the site."""
    runs = {
        "pipelined": ("CSX", "pipeline", f"--mgmt_address={system.address}"),
        "weight_streaming": ("CSX", "weight_streaming"),
        "CPU": ("CPU",),
    }
    programs = {name: [PROGRAM, *arguments, f"--model_dir={name}_dir"] for name, arguments in runs.items()}
    logs = run_programs(partial(command, CS_IP=system.address), ["csrun_cpu"], tmp_path, programs)
    losses = {}
    for name, tasks in logs.items():
        log = tasks["chief-0"]
        assert "branch wheel" in log
        found = [line.split() for line in re.findall(r"^\w+ \d+ \d\.\d+ True$", log, re.MULTILINE)]
        assert [step for _, step, _, _ in found] == ["0", "2", "4"]
        assert found[0][0] == (name if name != "CPU" else "pipelined")
        losses[name] = [float(loss) for _, _, loss, _ in found]
    assert losses["pipelined"] == pytest.approx(losses["CPU"], abs=2e-4)
    assert losses["weight_streaming"] == pytest.approx(losses["CPU"], abs=2e-4)


def test_without_a_system_it_says_what_is_missing(command: Command) -> None:
    result = command("csrun_cpu", "python", PROGRAM, "CSX")
    assert result.returncode == 2
    assert (
        "no CS system is known, expected the mgmt_address IP:PORT of the CSConfig, or CS_IP" in result.stderr
    )
