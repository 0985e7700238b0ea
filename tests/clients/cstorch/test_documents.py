"""The programs in docs/how-to/pytorch.md behave as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cstorch
from cstorch.program import Program
from tests.systems import RunningSystem

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "pytorch.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


CLOSURE = re.findall(r"```python\n(@cstorch.*?)```", PAGE.with_name("loggers.md").read_text(), re.DOTALL)[0]


def test_a_logger_gets_the_metrics_of_a_program(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CS_IP", system.address)
    logged: dict[int, dict[str, float]] = {}
    program = PROGRAMS[0].replace("        show(step", "        send_metrics(step")
    program = program.replace("loader = ", f"{CLOSURE}\n\nloader = ", 1)
    Program.reset()
    exec(program, {"__name__": "__main__", "log": logged.__setitem__})
    Program.reset()
    assert list(logged) == list(range(20, 201, 20))
    assert 0 < logged[200]["loss"] < logged[20]["loss"]


@pytest.mark.parametrize(
    ("number", "lines", "loss", "checkpoints"), [(0, 10, 0.2, (100, 200)), (1, 80, 0.8, ())]
)
def test_a_program_of_the_page_trains(
    number: int,
    lines: int,
    loss: float,
    checkpoints: tuple[int, ...],
    system: RunningSystem,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CS_IP", system.address)
    Program.reset()
    exec(PROGRAMS[number].replace("127.0.0.1:9000", system.address), {"__name__": "__main__"})
    Program.reset()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == lines
    assert float(printed[-1].split()[-1]) < loss
    saved = {path.stem: cstorch.load(path)["optimizer"]["global_step"] for path in tmp_path.glob("*.mdl")}
    assert saved == {f"checkpoint_{step}": step for step in checkpoints}
