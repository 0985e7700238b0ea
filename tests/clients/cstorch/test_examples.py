"""The example programs as users run them: their accuracy, and the analysis of their input."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csrun.schedulers.tasks import worker_variables
from cstorch.program import Program
from input_rules.input_export import ORDER_VARIABLE, InputProgram, Shard
from tests.systems import RunningSystem

ROOT = Path(__file__).parents[3]
PARAMS = {
    "fc_mnist": "params_fc_mnist.yaml",
    "resnet": "params_resnet_tiny.yaml",
    "bert": "params_bert_tiny.yaml",
    "gpt2": "params_gpt2_tiny.yaml",
}
Example = Callable[..., str]


@pytest.fixture
def run_example(
    system: RunningSystem,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Example]:
    """Run the `run.py` of an example on the system; return its output and log."""

    def run(name: str, *flags: str | Path) -> str:
        Program.reset()
        caplog.clear()
        program = ROOT / "models" / name / "pytorch" / "run.py"
        params = program.parent / "configs" / PARAMS[name]
        words = (program, f"--cs_ip={system.address}", f"--params={params}", *flags)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        runpy.run_path(str(program), run_name="__main__")
        return capsys.readouterr().out + caplog.text

    yield run
    Program.reset()


@pytest.mark.parametrize(
    ("name", "steps", "loss", "accuracy"),
    [
        ("fc_mnist", 100, 0.35, 0.9),
        ("gpt2", 60, 3.1, None),
        pytest.param("resnet", 50, 0.45, 0.98, marks=pytest.mark.soak),
        pytest.param("bert", 200, 3.0, 0.25, marks=pytest.mark.soak),
    ],
)
def test_the_example_reaches_its_loss_and_accuracy(
    name: str, steps: int, loss: float, accuracy: float | None, run_example: Example, tmp_path: Path
) -> None:
    """The loss of an evaluation on other data, and its accuracy."""
    run_example(name, "--mode=train", f"--max_steps={steps}", f"--model_dir={tmp_path}")
    said = run_example(name, "--mode=eval", f"--model_dir={tmp_path}")
    assert number(r"[Ll]oss[ =]*([0-9.]+)", said) < loss
    if accuracy is not None:
        assert number(r"eval/accuracy\w*': ([0-9.]+)", said) > accuracy


def number(pattern: str, text: str) -> float:
    """The number that a pattern finds in a text."""
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found.group(1))


@pytest.mark.parametrize("rank", [None, 1], ids=["chief", "worker"])
@pytest.mark.parametrize("name", ["fc_mnist", "gpt2"])
def test_an_analysis_gets_the_input_in_every_task(
    name: str, rank: int | None, run_example: Example, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With either loop nothing trains, and no task waits for another."""
    taken: list[InputProgram] = []

    def take(program: InputProgram, *, compiles: bool) -> None:
        taken.append(program)
        sys.exit(0)

    monkeypatch.setenv(ORDER_VARIABLE, str(tmp_path / "order"))
    monkeypatch.setattr("cs_runtime.input_source.export_input", take)
    for key, value in ({} if rank is None else worker_variables(os.environ, 2, rank)).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(SystemExit):
        run_example(name, "--mode=train", "-o", tmp_path)
    (program,) = taken
    assert program.framework == "torch"
    batch = next(program.batches(Shard(1, 0)))
    assert [array.shape[0] for array in batch] == [program.batch_size] * 2
    assert not list(tmp_path.glob("checkpoint_*"))
