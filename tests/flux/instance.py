"""Instances of Flux on this machine, and the commands of the toolkit on them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import clean_environment

LIMIT_S = 60.0
CORES = 2  # of each of the nodes, which are all this machine

Done = subprocess.CompletedProcess[str]


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, "this did not happen in time"
        time.sleep(0.05)


@dataclass
class Job:
    """A running command."""

    process: subprocess.Popen[str]
    work: Path
    log: Path

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(LIMIT_S)

    @property
    def text(self) -> str:
        """Everything that the command has printed."""
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the command has printed this."""
        end_s = time.monotonic() + LIMIT_S
        while text not in self.text:
            assert time.monotonic() < end_s, (text, self.text)
            time.sleep(0.05)


@dataclass
class Site:
    """An environment with the toolkit and the scheduler, a directory to work in, and perhaps an instance."""

    bin_dir: Path
    work: Path
    uri: str = ""
    started: list[Job] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the commands."""
        clean = clean_environment("FLUX_", "XDG_")
        own = {"XDG_STATE_HOME": f"{self.work}/state", "XDG_CONFIG_HOME": f"{self.work}/config"}
        path = f"{self.bin_dir}:{clean['PATH']}"
        instance = {"FLUX_URI": self.uri} if self.uri else {}
        return {**clean, **own, **instance, "PATH": path, "LC_ALL": "C.UTF-8"}

    def run(self, program: str, *words: str, **variables: str) -> Done:
        """Run a command to its end."""
        return subprocess.run(
            [program, *words],
            cwd=self.work,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S * 2,
            check=False,
        )

    def start(self, *words: str, **variables: str) -> Job:
        """Start `csrun_wse` with its output in a file."""
        log = self.work / f"output-{len(self.started)}.txt"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["csrun_wse", *words],
                cwd=self.work,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self.started.append(Job(process, self.work, log))
        return self.started[-1]

    def record(self, name: str = "logs") -> dict[str, Any]:
        """Return the record of a job."""
        found: dict[str, Any] = json.loads((self.work / name / "job.json").read_text())
        return found

    def jobs(self) -> list[str]:
        """Return the states of all waiting and running jobs."""
        return self.run("flux", "jobs", "--no-header", "--format={status}").stdout.split()


class Instance:
    """A Flux instance of several brokers on this machine, each of which is a node.

    Args:
        folder: for its configuration.
        nodes: number of brokers.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        hosts = f"node[1-{nodes}]"
        encode = [
            "flux",
            "R",
            "encode",
            f"--ranks=0-{nodes - 1}",
            f"--hosts={hosts}",
            f"--cores=0-{CORES - 1}",
        ]
        resources, configuration = folder / "R.json", folder / "flux.toml"
        resources.write_text(subprocess.run(encode, capture_output=True, text=True, check=True).stdout)
        configuration.write_text(f'[resource]\npath = "{resources}"\nnoverify = true\n')
        found, log = folder / "uri", folder / "instance.log"
        script = f'echo "$FLUX_URI" > {found}.new && mv {found}.new {found} && exec sleep inf'
        environment = clean_environment("FLUX_", "XDG_")
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [
                    *("flux", "start", f"--test-size={nodes}", f"--test-hosts={hosts}"),
                    *(f"--config-path={configuration}", "sh", "-c", script),
                ],
                env={**environment, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(lambda: found.exists() or self._process.poll() is not None)
        assert found.exists(), log.read_text()
        self.uri = found.read_text().strip()

    def stop(self) -> None:
        """End the instance and all its processes."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
