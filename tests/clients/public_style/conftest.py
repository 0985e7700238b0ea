from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import clean_environment
from tests.systems import RunningSystem

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
PROGRAMS = HERE.parents[1] / "programs" / "public_style"
TIMEOUT_S = 800.0
POLL_S = 0.05


@dataclass
class RunningJob:
    """A job that runs lists of programs.

    Attributes:
        lists: Takes the lists: a `WarmJob`.
        process: The launcher.
        output: Its output.
    """

    lists: Any
    process: subprocess.Popen[bytes]
    output: Path

    def run(
        self, programs: dict[str, list[str]], kill_at: dict[str, str] | None
    ) -> dict[str, dict[str, str]]:
        """Return the output of the programs by task."""
        logs = self.lists.add(programs, kill_at)
        deadline = time.monotonic() + TIMEOUT_S
        while not (logs / "done").exists():
            assert self.process.poll() is None, self.output.read_text()[-8000:]
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        return self.lists.logs(logs, programs)

    def end(self) -> None:
        self.lists.add({})
        try:
            assert self.process.wait(TIMEOUT_S) == 0, self.output.read_text()[-8000:]
        finally:
            self.process.kill()


@dataclass
class Workshop:
    """A directory in which programs run: copies of them, data, parameter files and model directories.

    Attributes:
        directory: The directory.
        system: The CS system.
        warm_job: The fixture of that name.
        jobs: A job for each number of tasks, begun when it is needed.
        logs: What the chief of a program wrote, by the name of the start.
    """

    directory: Path
    system: RunningSystem
    warm_job: Any
    jobs: dict[int, RunningJob] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def programs(self) -> Path:
        """The folder of the families' programs."""
        return self.directory / "programs"

    def copy_programs(self) -> None:
        """Copy the modules of the families, and to each the common run.py."""
        shutil.copytree(PROGRAMS, self.programs)
        for model in self.programs.glob("*/model.py"):
            shutil.copy(PROGRAMS / "run.py", model.parent)

    def parameters(self, family: str, name: str = "params", **changes: dict[str, Any]) -> str:
        """A parameter file `FAMILY_NAME.yaml` here: that of the family with changes, group by group.

        It is the family's `params_NAME.yaml` if there is one, else its tiny one.
        """
        configs = PROGRAMS / family / "configs"
        given = configs / f"params_{name}.yaml"
        params = yaml.safe_load((given if given.exists() else configs / "params_tiny.yaml").read_text())
        for group, values in {"runconfig": {"keep_checkpoint_max": 0}, **changes}.items():
            params.setdefault(group, {}).update(values)
        path = self.directory / f"{family}_{name}.yaml"
        path.write_text(yaml.safe_dump(params))
        return str(path)

    def program(self, family: str, *arguments: str) -> list[str]:
        """The words of a program; parameter file and model directory are the family's if none are given."""
        words = [str(self.programs / family / "run.py"), *arguments]
        words += [] if "-p" in arguments else ["-p", self.parameters(family)]
        return words + ([] if "-o" in arguments else ["-o", family])

    def script(self, name: str, family: str, *arguments: str) -> list[str]:
        """The words of a script beside this file that uses the modules of a family."""
        return [str(HERE / name), str(self.programs / family), *arguments]

    def run(
        self, programs: dict[str, list[str]], tasks: int = 1, kill_at: dict[str, str] | None = None
    ) -> None:
        """Runs programs one after the other as if each had a start of its own; keeps the chiefs' logs.

        Args:
            programs: Name -> words.
            tasks: Chief and workers of each; 1 runs them by `csrun_cpu`.
            kill_at: Name -> what a chief writes when it is killed; all others have to succeed.
        """
        if tasks not in self.jobs:
            launcher = ["csrun_cpu"] if tasks == 1 else ["csrun_wse", f"--tasks-per-node={tasks}"]
            lists = self.warm_job(self.directory / f"job_of_{tasks}", self.programs / "common")
            self.jobs[tasks] = self.launch(lists, [*launcher, *lists.command])
        logs = self.jobs[tasks].run(programs, kill_at)
        self.logs |= {name: log["chief-0"] for name, log in logs.items()}

    def launch(self, lists: Any, words: Sequence[str]) -> RunningJob:
        """A launcher with its words, in an environment without traces of the one around the tests."""
        # Between passes the compiler is verified by its own tests.
        clean = clean_environment("TF_USE_LEGACY", "CGC_VERIFY")
        output = self.directory / f"{lists.folder.name}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [str(ROOT / "bin" / words[0]), *words[1:]],
                cwd=self.directory,
                env={**clean, "XDG_CONFIG_HOME": str(self.directory)},
                stdout=file,
                stderr=file,
            )
        return RunningJob(lists, process, output)


@pytest.fixture(scope="module")
def workshop(
    system: RunningSystem, warm_job: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("workshop"), system, warm_job)
    workshop.copy_programs()
    yield workshop
    with ExitStack() as ends:
        for job in workshop.jobs.values():
            ends.callback(job.end)
