"""Jobs on a pool of CS systems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.systems import RunningSystem, running_system

from .training_jobs import assert_equal_bit_for_bit, checkpoint, finish, launch, wait_for_log

LONG = 1_000_000


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[list[RunningSystem]]:
    folders = [tmp_path / f"system-{number}" for number in range(2)]
    with ExitStack() as stack:
        running = []
        for folder in folders:
            folder.mkdir()
            running.append(stack.enter_context(running_system(folder, ["--threads=1"])))
        yield running


def pool(systems: list[RunningSystem]) -> RunningSystem:
    """The systems as one, for `launch`."""
    return replace(systems[0], address=",".join(system.address for system in systems))


def job_folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    return folder


def test_jobs_that_start_together_train_on_different_systems(
    systems: list[RunningSystem], forked: tuple[str, ...], tmp_path: Path
) -> None:
    folders = [job_folder(tmp_path, f"job-{number}") for number in range(2)]
    jobs = [launch(pool(systems), folder, LONG, before=forked) for folder in folders]
    # Both train at the same time.
    for job, folder in zip(jobs, folders, strict=True):
        wait_for_log(folder, "global step", job)
    for job in jobs:
        job.terminate()
        finish(job)
    used = [
        re.findall(r"using the CS system at (\S+), the first free one of 2", text)
        for text in ((folder / "logs" / "chief-0.log").read_text() for folder in folders)
    ]
    assert sorted(address for (address,) in used) == sorted(system.address for system in systems)
    assert [system.log().count("reserved by") for system in systems] == [1, 1]


def test_a_job_whose_system_is_lost_resumes_on_another_one(
    systems: list[RunningSystem], forked: tuple[str, ...], tmp_path: Path
) -> None:
    folder, whole = job_folder(tmp_path, "job"), job_folder(tmp_path, "whole")
    job = launch(pool(systems), folder, LONG, before=forked, FAULT="slow")
    wait_for_log(folder, "saved step [1-9]", job)
    (address,) = re.findall(r"using the CS system at (\S+),", (folder / "logs" / "chief-0.log").read_text())
    lost = next(system for system in systems if system.address == address)
    lost.process.kill()
    code, output = finish(job)
    assert code == 1, output
    reached = int(checkpoint(folder)["state.global_step"])
    code, output = finish(launch(pool(systems), folder, reached + 30, before=forked))
    assert code == 0, output
    assert f"skipping the CS system at {address}" in output
    (other,) = [system for system in systems if system is not lost]
    assert f"using the CS system at {other.address}" in output
    code, output = finish(launch(other, whole, reached + 30, before=forked))
    assert code == 0, output
    assert_equal_bit_for_bit(whole, folder, reached + 30)
