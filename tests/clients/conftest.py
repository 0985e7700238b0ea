"""Example programs on a simulated CS system, compared with the same graph in a plain TensorFlow session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

import pytest

from estimator import CerebrasEstimator, CSRunConfig
from estimator.startup import lazy_submodules
from tests.systems import RunningSystem

with lazy_submodules():  # the first import in a worker of the tests: Keras then imports no scikit-learn
    import tensorflow as tf

    from tests.programs.tf.events import read_losses

v1 = tf.compat.v1

SEED = 11
WARM = Path(__file__).with_name("warm.py")

Logs = dict[str, dict[str, str]]
"""What was written, by program and task."""

Example = Callable[[str], AbstractContextManager[dict[str, ModuleType]]]


@dataclass(frozen=True)
class Training:
    """The losses of the steps of one training, both ways, and the estimator that trained on the system.

    Variables are those of the session after the last step.
    """

    plain: list[float]
    plain_variables: dict[str, Any]
    on_system: list[float]
    estimator: CerebrasEstimator
    functions: Any


class WarmJob:
    """Lists of programs for one job of `warm.py`, whose tasks import TensorFlow once for all of them.

    Attributes:
        folder: For lists and logs; it is made here.
        command: What the tasks run, by a launcher.
    """

    def __init__(self, folder: Path, *packages: Path) -> None:
        """Args: the folder for lists and logs, and packages whose functions AutoGraph converts once."""
        folder.mkdir()
        self.command = "python", str(WARM), str(folder), *map(str, packages)
        self.folder = folder
        self._lists: list[Path] = []

    def add(
        self,
        programs: Mapping[str, Sequence[str]],
        kill_at: Mapping[str, str] | None = None,
        codes: Mapping[str, int] | None = None,
    ) -> Path:
        """Adds a list; where its logs will be.

        Args:
            programs: Name -> script and arguments; none of them end the job.
            kill_at: Name -> what a chief writes when it is killed.
            codes: Name -> exit code, where that is not 0.
        """
        kills, ends = kill_at or {}, codes or {}
        content = [
            {"name": name, "words": list(words), "kill_at": kills.get(name), "code": ends.get(name, 0)}
            for name, words in programs.items()
        ]
        number = len(self._lists)
        file = self.folder / f"programs_{number}.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(content))
        new.replace(file)
        self._lists.append(file)
        return self.folder / f"logs_{number}"

    @staticmethod
    def logs(folder: Path, programs: Iterable[str]) -> Logs:
        """Return the output of the programs of a list."""
        return {
            name: {path.name.split(".")[1]: path.read_text() for path in folder.glob(f"{name}.*.log")}
            for name in programs
        }


@pytest.fixture(scope="session")
def warm_job() -> type[WarmJob]:
    return WarmJob


@pytest.fixture(scope="session")
def run_programs() -> Callable[..., Logs]:
    """Run programs in sequence as if each were started separately; TensorFlow is imported once."""
    return _run_programs


def _run_programs(
    launch: Callable[..., CompletedProcess[str]],
    launcher: Sequence[str],
    directory: Path,
    programs: Mapping[str, Sequence[str]],
    *,
    codes: Mapping[str, int] | None = None,
) -> Logs:
    """A list of programs for `warm.py`.

    Args:
        launch: Runs a launcher in the directory.
        launcher: Its words, in front of those of a program.
        directory: For lists and logs of programs.
        programs: Name -> script and arguments.
        codes: Name -> exit code, where that is not 0.
    """
    job = WarmJob(directory / f"job_{len(list(directory.glob('job_*')))}")
    logs = job.add(programs, codes=codes)
    job.add({})
    done = launch(*launcher, *job.command)
    assert done.returncode == 0, f"{done.stdout[-8000:]}{done.stderr or ''}"
    return WarmJob.logs(logs, programs)


@pytest.fixture(scope="session")
def plain_session() -> Callable[..., tuple[list[float], dict[str, Any]]]:
    """(functions, params, steps) -> losses and last variables of a plain TensorFlow session."""
    return _plain_session


@pytest.fixture
def train_both_ways(
    system: RunningSystem, example: Example, tmp_path: Path
) -> Iterator[Callable[..., Training]]:
    """Trains an example: (name, group -> changes, steps, parameter file or the tiny one) -> Training."""
    with ExitStack() as stack:

        def train(
            name: str, changes: Mapping[str, Mapping[str, Any]], steps: int, file: str | None = None
        ) -> Training:
            program = stack.enter_context(example(name))["run"].PROGRAM
            path = str(program.folder / (file or program.params_file))
            params = program.merge_params(program.parse_arguments(["-m", "train", "-p", path]))
            for group, values in changes.items():
                params[group].update(values)
            functions = program.functions()
            config = CSRunConfig(cs_ip=system.address, tf_random_seed=SEED, save_summary_steps=1)
            estimator = CerebrasEstimator(functions.model_fn, tmp_path, config=config, params=params)
            estimator.train(functions.train_input_fn, max_steps=steps)
            plain, variables = _plain_session(functions, params, steps)
            return Training(plain, variables, read_losses(tmp_path), estimator, functions)

        yield train


def _plain_session(functions: Any, params: dict[str, Any], steps: int) -> tuple[list[float], dict[str, Any]]:
    """Losses and last variables of a session, without any code of the toolkit around the graph."""
    with tf.Graph().as_default():
        v1.set_random_seed(SEED)
        v1.train.create_global_step()
        batch = v1.data.make_one_shot_iterator(functions.train_input_fn(params)).get_next()
        spec = functions.model_fn(*batch, "train", params)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = [float(session.run([spec.loss, spec.train_op])[0]) for _ in range(steps)]
            return losses, session.run({v.op.name: v for v in v1.global_variables()})
