"""Jobs that go wrong: started in the background, watched line by line, and always cleaned up.

Every process of a test carries a variable with a unique value in its environment, so that a test sees what is
left of a job wherever it is, and the fixture ends it also when the test fails.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import clean_environment, kill_processes, list_processes, wait_until

BIN = Path(__file__).resolve().parents[3] / "bin"
LIMIT_S = 40.0


@dataclass
class Job:
    """A running csrun_wse; stdout is a pipe, stderr a file."""

    process: subprocess.Popen[str]
    stderr_path: Path
    marker: bytes

    def wait_for_lines(self, *expected: str) -> None:
        """Reads stdout until each of these lines has come, in any order."""
        assert self.process.stdout is not None
        missing = set(expected)
        while missing:
            line = self.process.stdout.readline()
            assert line, f"the job ended without {missing}: {self.stderr}"
            missing.discard(line.rstrip("\n"))

    def wait_for_stderr(self, text: str) -> None:
        """Waits until the launcher has said this."""
        wait_until(lambda: text in self.stderr)

    def signal(self, signum: int) -> None:
        """Send a signal only to the launcher."""
        self.process.send_signal(signum)

    def end(self) -> int:
        """Waits for the launcher's end; its exit code."""
        return self.process.wait(timeout=LIMIT_S)

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()

    def left(self) -> list[int]:
        """Living processes of the job, the launcher and its guard included."""
        return list_processes(self.marker)

    def clean_up(self) -> None:
        """Kill what is left of the job."""
        kill_processes(self.left)
        self.process.wait(timeout=LIMIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts csrun_wse with the given words in an empty directory, logs in ./logs, and does not wait."""
    jobs: list[Job] = []

    def call(
        *arguments: str, program: tuple[str, ...] = (str(BIN / "csrun_wse"),), stdin: int = subprocess.DEVNULL
    ) -> Job:
        value = uuid.uuid4().hex
        clean = clean_environment()
        stderr_path = tmp_path / "stderr"
        with stderr_path.open("w") as stderr:
            process = subprocess.Popen(
                [*program, "--log-dir=logs", *arguments],
                cwd=tmp_path,
                # Tests of restarts set --max-restarts; all others are about how a job ends.
                env={**clean, "TEST_MARKER": value, "CSRUN_MAX_RESTARTS": "0"},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        jobs.append(Job(process, stderr_path, f"TEST_MARKER={value}".encode()))
        return jobs[-1]

    yield call
    with ExitStack() as stack:
        for job in jobs:
            stack.callback(job.clean_up)
