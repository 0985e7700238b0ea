from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cs_system.testing import RunningSystem

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
FOREIGN = (
    *("CSRUN_", "TF_CONFIG", "SLURM_", "DEF_", "PYTHON", "SINGULARITY_", "GRES_", "CS_", "TF_USE_LEGACY"),
    "CGC_VERIFY",  # between passes the compiler is verified by its own tests
)
TIMEOUT_S = 800.0

RunPrograms = Callable[..., dict[str, dict[str, str]]]


@dataclass
class Workshop:
    """A directory in which programs run, with their data, parameter files and model directories.

    Attributes:
        directory: The directory.
        system: The CS system.
        run_programs: The fixture of that name.
        logs: What the chief of a program wrote, by the name of the start.
    """

    directory: Path
    system: RunningSystem
    run_programs: RunPrograms
    logs: dict[str, str] = field(default_factory=dict)

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
        words = [str(PROGRAMS / family / "run.py"), *arguments]
        words += [] if "-p" in arguments else ["-p", self.parameters(family)]
        return words + ([] if "-o" in arguments else ["-o", family])

    def script(self, name: str, family: str, *arguments: str) -> list[str]:
        """The words of a script beside this file that uses the modules of a family."""
        return [str(HERE / name), str(PROGRAMS / family), *arguments]

    def run(
        self, programs: dict[str, list[str]], tasks: int = 1, kill_at: dict[str, str] | None = None
    ) -> None:
        """Runs programs one after the other as if each had a start of its own; keeps the chiefs' logs.

        Args:
            programs: Name -> words.
            tasks: Chief and workers of each; 1 runs them by `csrun_cpu`.
            kill_at: Name -> what a chief writes when it is killed; all others have to succeed.
        """
        launcher = ["csrun_cpu"] if tasks == 1 else ["csrun_wse", f"--tasks-per-node={tasks}"]
        logs = self.run_programs(self.launch, launcher, self.directory, programs, kill_at=kill_at)
        self.logs |= {name: log["chief-0"] for name, log in logs.items()}

    def launch(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A launcher with its words, in an environment without traces of the one around the tests."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return subprocess.run(
            [str(ROOT / "bin" / words[0]), *words[1:]],
            cwd=self.directory,
            env={**clean, "XDG_CONFIG_HOME": str(self.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def workshop(
    system: RunningSystem, run_programs: RunPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"), system, run_programs)
