"""A private Slurm cluster for the whole session, clusters to break, and jobs that are always cleaned up.

Every process of a test carries a variable with a unique value in its environment, so that a test sees what is
left of a job on every node, and the fixture ends it also when the test fails.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.processes import kill_processes, list_processes, wait_until

from .cluster import INSTALL, SlurmCluster, missing_programs

BIN = Path(__file__).resolve().parents[2] / "bin"
LIMIT_S = 180.0
REQUIRED_VARIABLE = "CSRUN_REQUIRE_SLURM"
FOREIGN = ("CSRUN_", "TF_CONFIG", "DEF_", "PYTHON", "MOUNT_DIRS", "SINGULARITY_", "GRES_", "CS_IP", "LD_")


@dataclass
class Job:
    """A launcher that has been started; stdout and stderr are files."""

    process: subprocess.Popen[str]
    folder: Path
    marker: bytes

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait_for(self, *texts: str) -> None:
        """Waits until all of these have been written to stdout or stderr, the command itself left out."""
        wait_until(lambda: all(text in self._said() for text in texts), self.shown, LIMIT_S)

    def _said(self) -> str:
        lines = (self.stdout + self.stderr).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(("Launching: ", "Running: ")))

    def signal(self, signum: int) -> None:
        """Send a signal only to the launcher."""
        self.process.send_signal(signum)

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Waits for the launcher's end; its exit code."""
        try:
            return self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the launcher does not end: {self.shown()}")

    def shown(self) -> str:
        """Everything that it has written."""
        return f"--- stdout\n{self.stdout}--- stderr\n{self.stderr}"

    def left(self) -> list[int]:
        """Living processes of the job on all nodes, the launcher and srun included."""
        return list_processes(self.marker)

    def clean_up(self) -> None:
        """Kill what is left of the job."""
        kill_processes(self.left)
        self.process.wait(timeout=LIMIT_S)

    def pids(self, *variables: str) -> list[int]:
        """Processes of the job that have all these "NAME=value" in their environment."""
        return list_processes(self.marker, *(text.encode() for text in variables))


@pytest.fixture(name="wait")
def wait_fixture() -> Callable[..., None]:
    return partial(wait_until, timeout_s=LIMIT_S)


@pytest.fixture(scope="session")
def slurm_programs() -> None:
    """Skips where Slurm is not installed; fails there if CSRUN_REQUIRE_SLURM is set, as it is in CI."""
    missing = missing_programs()
    if missing and os.environ.get(REQUIRED_VARIABLE):
        pytest.fail(f"{REQUIRED_VARIABLE} is set and {', '.join(missing)} are not installed: {INSTALL}")
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)}): {INSTALL}")


@pytest.fixture(scope="session")
def cluster(slurm_programs: None) -> Iterator[SlurmCluster]:
    """Four nodes of four CPUs for tests that leave them as they are."""
    with SlurmCluster(4, isolate=True) as running:
        yield running


@pytest.fixture
def make_cluster(slurm_programs: None) -> Iterator[Callable[..., SlurmCluster]]:
    """Starts clusters that a test may break."""
    with ExitStack() as stack:

        def make(nodes: int = 4, cpus: int = 4, **options: object) -> SlurmCluster:
            cluster = SlurmCluster(nodes, cpus, isolate=True, **options)  # type: ignore[arg-type]
            stack.callback(cluster.stop)
            return cluster.__enter__()

        yield make


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a program of bin/ on a cluster in an empty directory and does not wait."""
    jobs: list[Job] = []
    clusters: list[SlurmCluster] = []

    def call(
        on: SlurmCluster,
        *words: str,
        env: dict[str, str] | None = None,
        program: str = "csrun_wse",
        cwd: Path | None = None,
        before: tuple[str, ...] = (),
    ) -> Job:
        """Args: before: words in front of the launcher's path, such as those of salloc."""
        value = uuid.uuid4().hex
        folder = tmp_path / value
        folder.mkdir()
        clean = {name: text for name, text in on.environment.items() if not name.startswith(FOREIGN)}
        own = {"XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "TEST_MARKER": value}
        own["CSRUN_MAX_RESTARTS"] = "0"  # tests of restarts set --max-restarts; the others are about endings
        with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                [*before, str(BIN / program), *words],
                cwd=cwd or tmp_path,
                env={**clean, **own, "GRES_RESOURCE": "cs:1", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
            )
        jobs.append(Job(process, folder, f"TEST_MARKER={value}".encode()))
        clusters.append(on)
        return jobs[-1]

    yield call
    if any(job.left() for job in jobs):  # the test has failed: all others would wait for its nodes
        for used in dict.fromkeys(clusters):
            with suppress(subprocess.SubprocessError):  # a cluster that a test has stopped
                used.run("scancel", *used.jobs())
    with ExitStack() as stack:
        for job in jobs:
            stack.callback(job.clean_up)


@pytest.fixture
def run(start: Callable[..., Job]) -> Callable[..., Job]:
    """Runs a program of bin/ on a cluster to its end; nothing of it may be left."""

    def call(*arguments: object, **options: object) -> Job:
        job = start(*arguments, **options)
        job.end()
        assert not job.left(), job.shown()
        return job

    return call
