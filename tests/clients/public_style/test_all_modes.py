"""Programs in the manner of public ones, a family each, through all modes with two workers.

A program sees what it would see in a start of its own; only TensorFlow is imported once for several of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.programs.tf.events import read_scalars

FAMILIES = ("mlp", "gpt2", "bert", "t5", "unet", "classifier", "tagger")
BROKEN = ("gpt2", "tagger")
"""Families whose training is killed; they leave out what was used by themselves."""

UNBROKEN = tuple(family for family in FAMILIES if family not in BROKEN)
QUICK = ("gpt2", "t5", "unet")
"""Families that `make test` trains: decoder, encoder and decoder, convolutions; `make soak` trains all."""

IN_ALL_MODES = ("gpt2",)
"""Families that `make test` also continues, evaluates and asks for predictions."""

TESTS_OF_TRAINING = (
    "test_is_compiled",
    "test_trains_with_two_workers",
    "test_losses_are_those_of_a_plain_session",
)
"""Tests that need no more than a compiled and trained network."""

TASKS = 3
STEPS, MORE_STEPS = 20, 25
EVAL_STEPS = 4

Workshop = Any

# The first test of a stage waits for the programs of all families.
pytestmark = pytest.mark.timeout(900)


def each_family(families: Sequence[str], quick: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize a test by families; those that are not quick are left to `make soak`."""
    return pytest.mark.parametrize(
        "family",
        [pytest.param(name, marks=() if name in quick else pytest.mark.soak) for name in families],
    )


each_in_all_modes = each_family(FAMILIES, IN_ALL_MODES)


@dataclass(frozen=True)
class Chosen:
    """Families of the tests that will run; the stages run no programs for others.

    Attributes:
        trained: All of them.
        in_all_modes: Those that are validated, continued, evaluated and asked for predictions as well.
    """

    trained: tuple[str, ...]
    in_all_modes: tuple[str, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """The families whose training run is killed."""
        return tuple(family for family in self.in_all_modes if family in BROKEN)

    def fresh_model_dir(self, family: str) -> str:
        """Return the directory in which a family has trained its first steps without a break."""
        return f"{family}_whole" if family in self.broken else family


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> Chosen:
    trained, in_all_modes = set(), set()
    for item in request.session.items:
        if item.path == request.path and isinstance(item, pytest.Function):
            family = item.callspec.params["family"]
            trained.add(family)
            if item.originalname not in TESTS_OF_TRAINING:
                in_all_modes.add(family)
    ordered = [tuple(name for name in FAMILIES if name in found) for found in (trained, in_all_modes)]
    return Chosen(*ordered)


@pytest.fixture(scope="module")
def compiled(workshop: Workshop, chosen: Chosen) -> Workshop:
    """Data is there, and every program is validated and compiled."""
    programs = {}
    for family in chosen.trained:
        programs[f"{family}_data"] = workshop.script("prepare.py", family, workshop.parameters(family))
        if family in chosen.in_all_modes:
            programs[f"{family}_validate"] = workshop.program(family, "-m", "train", "--validate_only")
        programs[f"{family}_compile"] = workshop.program(family, "-m", "train", "--compile_only")
    workshop.run(programs)
    return workshop


def training(workshop: Workshop, family: str, max_steps: int, *arguments: str) -> list[str]:
    ip = f"--cs_ip={workshop.system.address}"
    return workshop.program(family, "-m", "train", ip, f"--max_steps={max_steps}", *arguments)


@pytest.fixture(scope="module")
def trained(compiled: Workshop, chosen: Chosen) -> Workshop:
    """Two workers have trained all families; some were killed on the way."""
    steps = dict.fromkeys(chosen.trained, STEPS) | dict.fromkeys(chosen.broken, 1_000_000)
    programs = {f"{family}_train": training(compiled, family, last) for family, last in steps.items()}
    kill_at = {f"{family}_train": "Saving checkpoints for 20 " for family in chosen.broken}
    compiled.run(programs, TASKS, kill_at)
    return compiled


@pytest.fixture(scope="module")
def last_steps(trained: Workshop, chosen: Chosen) -> dict[str, int]:
    """Family -> the step that a second training goes to: beyond what the killed ones have left."""
    killed = {family: kept(trained, family) + 10 for family in chosen.broken}
    return dict.fromkeys(chosen.in_all_modes, MORE_STEPS) | killed


def kept(workshop: Workshop, family: str) -> int:
    newest = tf.train.latest_checkpoint(str(workshop.directory / family))
    assert newest is not None
    return int(newest.rpartition("-")[2])


@pytest.fixture(scope="module")
def resumed(trained: Workshop, chosen: Chosen, last_steps: dict[str, int]) -> Workshop:
    """Families have gone on; those that were killed have also been trained without a break."""
    programs = {}
    for family, step in last_steps.items():
        programs[f"{family}_resume"] = training(trained, family, step)
        if family in chosen.broken:
            programs[f"{family}_whole"] = training(trained, family, step, "-o", f"{family}_whole")
    trained.run(programs, TASKS)
    return trained


def off_the_system(workshop: Workshop, family: str) -> str:
    """Parameters with which TensorFlow on a CPU can train: 0 where labels are -1, which have no weight."""
    padded = family in ("bert", "tagger")
    return workshop.parameters(family, "off", train_input={"pad_label": 0} if padded else {})


@pytest.fixture(scope="module")
def finished(resumed: Workshop, chosen: Chosen) -> Workshop:
    """The trained networks have been evaluated and asked, on this CPU and on the CS system."""
    programs = {}
    ip = f"--cs_ip={resumed.system.address}"
    for family in chosen.trained:
        checkpoint = str(resumed.directory / chosen.fresh_model_dir(family) / "model.ckpt-0")
        arguments = off_the_system(resumed, family), checkpoint, str(STEPS), str(TASKS - 1)
        programs[f"{family}_plain"] = resumed.script("plain.py", family, *arguments)
    for family in chosen.in_all_modes:
        for mode in ("eval", "predict"):
            words = (family, "-m", mode, f"--eval_steps={EVAL_STEPS}")
            programs[f"{family}_{mode}_cpu"] = resumed.program(*words)
            programs[f"{family}_{mode}_cs"] = resumed.program(*words, ip)
        words = ("-m", "train_and_eval", f"--max_steps={STEPS}", f"--eval_steps={EVAL_STEPS}")
        programs[f"{family}_off"] = resumed.program(
            family, *words, "-p", off_the_system(resumed, family), "-o", f"{family}_off"
        )
    resumed.run(programs)
    return resumed


@each_in_all_modes
def test_is_validated(compiled: Workshop, family: str) -> None:
    assert "every operation can run on the CS system" in compiled.logs[f"{family}_validate"]


@each_family(FAMILIES, QUICK)
def test_is_compiled(compiled: Workshop, family: str) -> None:
    report = next((compiled.directory / family).glob("cs_*/compile_report.txt")).read_text()
    rate = re.search(r"Samples/s: +([0-9.]+)", report)
    assert rate is not None
    assert float(rate[1]) > 0


@each_family(UNBROKEN, QUICK)
def test_trains_with_two_workers(trained: Workshop, family: str) -> None:
    log = trained.logs[f"{family}_train"]
    assert losses_of(log)[0][0] == 1
    summary = json.loads((trained.directory / family / "run_summary.json").read_text())
    assert (summary["status"], summary["workers"]) == ("completed", TASKS - 1)


@each_family(UNBROKEN, IN_ALL_MODES)
def test_a_second_training_continues_from_the_checkpoint(resumed: Workshop, family: str) -> None:
    before, after = (losses_of(resumed.logs[f"{family}_{name}"]) for name in ("train", "resume"))
    assert before[0][0] == 1
    assert (before[-1][0], after[0][0], after[-1][0]) == (STEPS, STEPS + 1, MORE_STEPS)
    assert all(math.isfinite(loss) for _, loss in after)


LOSSES = {"mixed_float16": 5e-3, "cbfloat16": 1.5e-2}
"""How far a loss may be from that of a session of TensorFlow, of the first one, by precision.

Both compute in 16 bits and round at other places; cbfloat16 has 2 bits less, and the session has float16.
"""


@each_family(FAMILIES, QUICK)
def test_losses_are_those_of_a_plain_session(finished: Workshop, chosen: Chosen, family: str) -> None:
    model_dir = finished.directory / chosen.fresh_model_dir(family)
    logged = read_scalars(model_dir)["loss"]
    lines = re.findall(r"^loss (\d+) (\S+)$", finished.logs[f"{family}_plain"], re.MULTILINE)
    expected = {int(step): float(loss) for step, loss in lines}
    assert list(expected) == list(range(1, STEPS + 1))
    summary = json.loads((model_dir / "run_summary.json").read_text())
    tolerance = LOSSES["cbfloat16" if summary["precision"] == "cbfloat16" else "mixed_float16"] * expected[1]
    assert {step: logged[step] for step in expected} == pytest.approx(expected, abs=tolerance)


@each_in_all_modes
def test_trains_and_evaluates_off_the_system(finished: Workshop, family: str) -> None:
    losses = losses_of(finished.logs[f"{family}_off"])
    assert (losses[0][0], losses[-1][0]) == (1, STEPS)
    assert all(math.isfinite(loss) for _, loss in losses)
    assert metrics_of(finished.logs[f"{family}_off"])["global_step"] == STEPS


def losses_of(log: str) -> list[tuple[int, float]]:
    found = re.findall(r"global step (\d+): loss = (\S+)", log)
    return [(int(step), float(loss)) for step, loss in found]


@each_family(BROKEN, IN_ALL_MODES)
def test_a_killed_run_resumes_as_if_it_had_never_stopped(
    resumed: Workshop, last_steps: dict[str, int], family: str
) -> None:
    step = last_steps[family]
    assert step >= 20
    broken, whole = (variables(resumed.directory / name, step) for name in (family, f"{family}_whole"))
    assert broken.keys() == whole.keys()
    for name, value in whole.items():
        assert broken[name].tobytes() == value.tobytes(), name


def variables(model_dir: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(model_dir / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@each_in_all_modes
def test_evaluates_off_and_on_the_system_alike(
    finished: Workshop, last_steps: dict[str, int], family: str
) -> None:
    cpu, cs = (metrics_of(finished.logs[f"{family}_eval_{place}"]) for place in ("cpu", "cs"))
    assert cpu.keys() == cs.keys()
    assert {"loss", "global_step"} < cpu.keys()
    assert cs["global_step"] == cpu["global_step"] == last_steps[family]
    # Both compute in 16 bits, and round at other places. Metrics may change by some of the positions.
    assert cs.pop("loss") == pytest.approx(cpu.pop("loss"), rel=2e-2)
    assert cs == pytest.approx(cpu, abs=0.05)


def metrics_of(log: str) -> dict[str, float]:
    (line,) = re.findall(r"^metrics: (.*)$", log, re.MULTILINE)
    return {name: float(value) for name, value in (pair.split("=") for pair in line.split())}


@each_in_all_modes
def test_predicts_off_and_on_the_system_alike(finished: Workshop, family: str) -> None:
    cpu, cs = (predictions_of(finished.logs[f"{family}_predict_{place}"]) for place in ("cpu", "cs"))
    assert len(cpu) == len(cs) == 4
    for one, other in zip(cpu, cs, strict=True):
        assert [name for name, _ in one] == [name for name, _ in other]
        for (name, value), (_, expected) in zip(one, other, strict=True):
            assert value == pytest.approx(expected, abs=0.02), name


def predictions_of(log: str) -> list[list[tuple[str, list[float]]]]:
    lines = re.findall(r"^prediction \d+: (.*)$", log, re.MULTILINE)
    found = [re.findall(r"(\w+)=(\[.*?\])", line) for line in lines]
    return [[(name, json.loads(values)) for name, values in line] for line in found]
