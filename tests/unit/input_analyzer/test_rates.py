"""Rates of copies whose true rate is known: they keep a pace, whatever else the machine does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from csrun.tasks.environment import program_environment, this_toolkit
from input_analyzer.analysis import Measurement
from input_analyzer.child import check_length
from input_analyzer.errors import InputEndedError, ProcessBugError
from input_analyzer.measure.copies import ExitTimeout, Launch
from input_analyzer.measure.node import ColdFiles, processes_in_sessions
from input_analyzer.measure.rates import FEWEST_BATCHES, Effort, Plan, Rates, plans
from input_analyzer.rate_model import Point, fit
from input_rules.input_export import Shard

from .resident_files import resident

PROGRAM = """
import os, sys, time
import numpy as np
from input_rules.input_export import InputProgram, export_input
{head}
def batch():
    return np.zeros([10, 5], np.float32), np.zeros([10], np.int32)

def pace(seconds):
    # Delays of a busy machine are made up for; what is longer is a pause of the analyzer.
    global due
    now = time.monotonic()
    due = (due if now - due < 0.2 else now) + seconds
    time.sleep(max(0.0, due - now))

due = 0.0

def batches(shard):
    assert shard.count == int(os.environ["CSRUN_NUM_TASKS"]) - 1
    assert shard.index == int(os.environ["CSRUN_TASK_INDEX"])
    {body}

export_input(InputProgram("tensorflow", batches, lambda shard: None, batches))
"""


def measure(
    tmp_path: Path,
    body: str,
    plan: Plan,
    epoch: int | None = None,
    effort: Effort | None = None,
    head: str = "",
    exit_timeout: ExitTimeout | None = None,
    make_cold: Callable[[Callable[[str], None]], None] | None = None,
) -> tuple[list[Measurement], Rates]:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(head=head, body=body.replace("\n", "\n    ")), encoding="utf-8")
    environment = dict(os.environ)
    environment = program_environment(environment, this_toolkit()).apply(environment)
    words = (sys.executable, str(file))
    launch = Launch(words, environment, 60.0, None, "here", exit_timeout=exit_timeout or ExitTimeout(20.0))
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    rates = Rates(effort or Effort(1.0, 3.0), epoch, cpus, make_cold)
    return list(rates.measure(launch, plan, lambda doing, part: None)), rates


def test_copies_that_sleep_add_up(tmp_path: Path) -> None:
    body = """
while True:
    pace(0.05)
    yield batch()
"""
    found, rates = measure(tmp_path, body, Plan(1, (1, 2)))
    assert [(one.tasks, one.cpus_per_task) for one in found] == [(1, 1), (2, 1)]
    for one in found:
        truth = one.tasks * 10 / 0.05
        assert 0.7 * truth < one.samples_per_s < 1.02 * truth
        assert one.low <= one.samples_per_s <= one.high
        assert one.bytes_per_sample == 24
        assert 5 << 20 < one.memory_per_task_bytes < 1 << 30
    assert found[1].samples_per_s / found[0].samples_per_s == pytest.approx(2, rel=0.2)
    assert not rates.restarts


def test_the_first_epoch_is_distinguished_from_those_that_read_from_a_cache(tmp_path: Path) -> None:
    body = """
for index in range(1_000_000):
    pace(0.05 if index < 20 else 0.01)
    yield batch()
"""
    (one,), rates = measure(tmp_path, body, Plan(1, (1,)), epoch=200)
    assert one.first_epoch_samples_per_s == pytest.approx(200, rel=0.25)
    assert one.samples_per_s > 2.5 * 200
    assert one.warm_up_s > 0.9
    assert rates.epoch_ended


def test_a_warm_up_is_cut_off(tmp_path: Path) -> None:
    body = """
for index in range(1_000_000):
    pace(0.0 if index < 50 else 0.05)  # what a full buffer delivers at once
    yield batch()
"""
    (one,), _ = measure(tmp_path, body, Plan(1, (1,)), effort=Effort(2.0, 3.0))
    assert one.samples_per_s == pytest.approx(200, rel=0.2)


def test_few_batches_are_not_settled(tmp_path: Path) -> None:
    body = """
while True:
    pace(0.15)
    yield batch()
"""
    (one,), _ = measure(tmp_path, body, Plan(1, (1,)), effort=Effort(0.2, 0.25))
    assert not one.settled
    assert 1 < one.batches < FEWEST_BATCHES


def test_an_input_that_ends_is_read_again(tmp_path: Path) -> None:
    body = """
for index in range(40):
    pace(0.01)
    yield batch()
"""
    (one,), rates = measure(tmp_path, body, Plan(1, (1,)))
    assert rates.restarts >= 2
    assert one.samples_per_s == pytest.approx(1000, rel=0.3)
    assert one.first_epoch_samples_per_s == pytest.approx(1000, rel=0.3), "its end tells its size"


def test_files_are_read_from_the_disk_in_a_cold_first_epoch_only(tmp_path: Path) -> None:
    file = tmp_path / "data" / "records"
    file.parent.mkdir()
    file.write_bytes(np.random.default_rng(1).bytes(4 << 20))
    body = f"""
with open({str(file)!r}, "rb", buffering=0) as file:
    while True:
        if not file.read(40960):
            file.seek(0)
        pace(0.005)
        yield batch()
"""
    cold = ColdFiles("--cold", [file.parent])
    cold.drop(lambda doing: None)
    on_disk = resident(file) == 0
    effort = Effort(1.0, 3.0)
    (one, two), rates = measure(tmp_path, body, Plan(1, (1, 2)), 1020, effort, make_cold=cold.drop)
    assert (one.cold, two.cold) == (True, False), "the second one has come to the end of its epoch"
    assert rates.epoch_ended
    assert one.first_epoch_samples_per_s is not None
    if not on_disk or one.first_epoch_disk_bytes_per_sample is None:
        pytest.skip("temporary files are in memory here, or the kernel does not tell what is read")
    assert one.first_epoch_disk_bytes_per_sample == pytest.approx(4096, rel=0.3)
    (one,), _ = measure(tmp_path, body, Plan(1, (1,)), 1020, effort)
    assert not one.cold
    assert one.first_epoch_disk_bytes_per_sample is not None
    assert one.first_epoch_disk_bytes_per_sample < 0.3 * 4096


def test_an_epoch_that_does_not_end_is_cold_in_every_measurement(tmp_path: Path) -> None:
    body = """
while True:
    pace(0.02)
    yield batch()
"""
    dropped: list[str] = []
    (one, two), rates = measure(
        tmp_path, body, Plan(1, (1, 2)), 10**6, Effort(0.5, 1.0), make_cold=lambda say: dropped.append("all")
    )
    assert one.cold
    assert two.cold
    assert len(dropped) == 2
    assert one.first_epoch_samples_per_s == pytest.approx(one.samples_per_s, rel=0.2)
    assert two.first_epoch_samples_per_s is None
    assert not rates.epoch_ended


def test_a_cold_epoch_that_ends_soon_is_waited_for(tmp_path: Path) -> None:
    body = """
for index in range(1_000_000):
    pace(0.02 if index < 60 else 0.002)
    yield batch()
"""
    effort = Effort(0.3, 4.0)  # as tight as asked for before the epoch ends
    (one,), rates = measure(tmp_path, body, Plan(1, (1,)), 600, effort, make_cold=lambda say: None)
    assert rates.epoch_ended
    assert one.first_epoch_samples_per_s is not None
    assert one.samples_per_s > 2 * one.first_epoch_samples_per_s


def test_cpu_time_is_only_that_of_reading(tmp_path: Path) -> None:
    # Loading the program, which takes longer in the second copy, and building the input do not count.
    body = """
spin(0.3)
while True:
    spin(0.02)
    pace(0.02)
    yield batch()
"""
    head = """
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

if os.environ["CSRUN_TASK_INDEX"] == "1":
    spin(0.6)
"""
    found, _ = measure(tmp_path, body, Plan(1, (1, 2)), head=head)
    for one in found:
        assert one.cpu_us_per_sample == pytest.approx(2000, rel=0.25)


def test_a_layout_that_was_not_measured_is_predicted_within_20_percent(tmp_path: Path) -> None:
    body = """
while True:
    pace(0.05)
    yield batch()
"""
    found, _ = measure(tmp_path, body, Plan(1, (1, 2, 4)))
    by_tasks = {one.tasks: one for one in found}
    model = fit([Point(m.tasks, 1, m.samples_per_s) for m in (by_tasks[1], by_tasks[2])])
    assert model.rate(4, 1) == pytest.approx(by_tasks[4].samples_per_s, rel=0.2)


@pytest.mark.parametrize("hangs", [False, True])
def test_copies_end_as_a_program_does_unless_they_hang(tmp_path: Path, hangs: bool) -> None:
    head = f"""
import atexit, subprocess
from pathlib import Path

here = Path({str(tmp_path)!r}) / os.environ["CSRUN_TASK_INDEX"]
here.mkdir()
(here / str(os.getpid())).touch()
atexit.register((here / "ended").touch)
if {hangs}:
    atexit.register(time.sleep, 600)
subprocess.Popen(["sleep", "600"])
"""
    body = """
while True:
    pace(0.01)
    yield batch()
"""
    exit_timeout = ExitTimeout(0.5 if hangs else 20.0)
    measure(tmp_path, body, Plan(1, (1, 2)), effort=Effort(0.2, 0.4), head=head, exit_timeout=exit_timeout)
    for folder in (tmp_path / "0", tmp_path / "1"):
        assert (folder / "ended").exists() != hangs
        (leader,) = (int(file.name) for file in folder.iterdir() if file.name.isdigit())
        assert not processes_in_sessions([leader]), "what it has started is left"
    assert (exit_timeout.left_s == 0) == hangs, "the next ones are not waited for"


@pytest.mark.parametrize(
    ("cpus", "candidates", "memory", "copy", "counts"),
    [
        (2, (1, 2), 100, 1, [(1, 2), (1,)]),
        (16, (1, 4), 100, 1, [(1, 2, 4, 8, 16), (1, 2, 4)]),
        (12, (1,), 100, 1, [(1, 2, 4, 8, 12)]),
        (16, (1,), 100, 30, [(1, 2, 3)]),
        (16, (1,), 100, 1000, [(1,)]),
    ],
)
def test_plans_depend_on_cpus_candidates_and_memory(
    cpus: int, candidates: tuple[int, ...], memory: int, copy: int, counts: list[tuple[int, ...]]
) -> None:
    assert [plan.counts for plan in plans(cpus, candidates, memory, copy)] == counts


def test_no_more_copies_are_measured_than_have_something_to_read() -> None:
    assert [plan.counts for plan in plans(16, (1, 4, 8), 100, 1, most_workers=3)] == [
        (1, 2, 3),
        (1, 2, 3),
        (1, 2),
    ]


def test_a_worker_without_records_is_named() -> None:
    with pytest.raises(InputEndedError, match=r"in shard 1 of 2; .* add repeat"):
        check_length(0, 0, Shard(2, 1))
    with pytest.raises(InputEndedError, match="add repeat"):
        check_length(0, 0, Shard(1, 0))


def test_a_bug_of_the_toolkit_in_a_copy_ends_the_analysis_as_one(tmp_path: Path) -> None:
    head = "from input_rules.batches import batch_bytes\n"
    with pytest.raises(ProcessBugError, match="please report it with this traceback") as caught:
        measure(tmp_path, "\nyield batch_bytes(None)\n", Plan(1, (1,)), head=head)
    assert caught.value.exit_code == 3
    assert "in batch_bytes" in str(caught.value)
