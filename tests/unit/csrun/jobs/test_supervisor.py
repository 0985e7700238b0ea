"""The job's state machine, event by event, with a clock that the test turns."""

from __future__ import annotations

import signal

import pytest

from csrun.jobs.supervisor import (
    LAST_WORDS_S,
    Action,
    Phase,
    ReportFailure,
    ReportLoss,
    ReportRestart,
    Say,
    Supervisor,
)

LABELS = ("chief", "worker 0", "worker 1")


@pytest.fixture
def job() -> Supervisor:
    return Supervisor(LABELS, grace_s=10, wind_down_s=60)


def test_a_lost_task_ends_the_job_with_1(job: Supervisor) -> None:
    assert job.handle_task_loss(2, "its connection broke", 5.0) == [
        ReportLoss(2, "its connection broke"),
        Say("terminating chief, worker 0"),
    ]
    assert job.termination_signal is signal.SIGTERM
    assert job.handle_task_loss(1, "its connection broke", 5.1) == []  # ended, and its agent with it
    assert job.handle_task_end(0, 143, 5.2) == []
    assert not job.has_running_tasks
    assert job.exit_code == 1
    assert job.outcome == "the job failed with exit code 1"


def test_a_lost_system_leaves_the_chief_some_seconds_for_its_own_words(job: Supervisor) -> None:
    assert job.handle_system_loss("the CS system is gone", 5.0, report_limit_s=3.0) == [
        Say("the CS system is gone")
    ]
    assert job.next_tick_s == 8.0
    assert job.tick(7.9) == []
    assert job.termination_signal is None
    assert texts(job.tick(8.0)) == "terminating chief, worker 0, worker 1"
    assert job.exit_code == 1
    assert job.next_tick_s == 18.0  # the grace time


def test_a_chief_that_fails_by_itself_after_the_system_is_lost_decides(job: Supervisor) -> None:
    job.handle_system_loss("the CS system is gone", 5.0, report_limit_s=3.0)
    assert job.handle_task_end(0, 4, 6.0) == [ReportFailure(0, 4)]
    assert texts(job.tick(6.0 + LAST_WORDS_S)) == "terminating worker 0, worker 1"
    assert job.exit_code == 4


def test_a_chief_that_succeeds_after_the_system_is_lost_needs_no_further_tick_for_it(job: Supervisor) -> None:
    job.handle_system_loss("the CS system is gone", 5.0, report_limit_s=3.0)
    assert job.handle_task_end(0, 0, 6.0) == []
    job.tick(8.0)  # the note that the chief has finished
    assert job.next_tick_s == 66.0
    assert not job.failed


def test_nobody_misses_the_system_after_the_chief(job: Supervisor) -> None:
    job.handle_task_end(0, 0, 1.0)
    assert job.handle_system_loss("the CS system is gone", 5.0, report_limit_s=3.0) == []
    assert job.termination_signal is None


def test_a_cancelled_job_has_the_code_of_the_signal(job: Supervisor) -> None:
    assert texts(job.handle_cancellation("Slurm wants it", signal.SIGTERM, 5.0)) == "Slurm wants it"
    assert job.handle_cancellation("Slurm wants it", signal.SIGTERM, 5.1) == []
    for rank in range(3):
        assert job.handle_task_end(rank, 143, 6.0) == []
    assert job.exit_code == 143
    assert job.outcome == "the job was terminated by its scheduler"


def test_a_job_that_cannot_continue_ends_with_the_given_code(job: Supervisor) -> None:
    assert (
        texts(job.handle_job_failure("cs-node2: command not found", 127, 5.0))
        == "cs-node2: command not found"
    )
    assert job.handle_job_failure("cs-node3: command not found", 127, 5.1) == []
    assert job.exit_code == 127
    assert job.termination_signal is signal.SIGTERM


def texts(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def test_all_tasks_end_well(job: Supervisor) -> None:
    for rank in (2, 1, 0):
        assert job.termination_signal is None
        assert job.handle_task_end(rank, 0, 1.0) == []
    assert not job.has_running_tasks
    assert job.termination_signal is signal.SIGTERM  # for what the tasks have left running
    assert job.exit_code == 0


def test_workers_may_end_before_the_chief_for_as_long_as_it_takes(job: Supervisor) -> None:
    job.handle_task_end(1, 0, 1.0)
    job.handle_task_end(2, 0, 1.0)
    assert job.next_tick_s is None
    assert job.tick(1e6) == []
    assert job.termination_signal is None


def test_the_first_failure_decides(job: Supervisor) -> None:
    assert job.handle_task_end(2, 3, 5.0) == [ReportFailure(2, 3)]
    assert texts(job.tick(5.0 + LAST_WORDS_S)) == "terminating chief, worker 0"
    assert job.termination_signal is signal.SIGTERM
    assert job.handle_task_end(0, 143, 5.1) == []
    assert texts(job.handle_task_end(1, 9, 5.2)) == "worker 0 also failed, exit code 9"
    assert job.exit_code == 3


def test_a_failure_leaves_the_others_a_moment_for_their_own_words(job: Supervisor) -> None:
    job.handle_task_end(2, 3, 5.0)
    assert job.next_tick_s == 5.0 + LAST_WORDS_S
    assert job.tick(5.0) == []
    assert job.termination_signal is None
    assert texts(job.handle_task_end(0, 1, 5.1)) == "chief also failed, exit code 1"
    assert job.handle_task_end(1, 0, 5.2) == []
    assert job.termination_signal is signal.SIGTERM  # for what the tasks have left running
    assert not job.has_running_tasks
    assert (job.exit_code, job.interrupted_by) == (3, None)


@pytest.mark.parametrize("end", ["interrupted", "cancelled"])
def test_a_failed_job_that_is_ended_has_still_failed(job: Supervisor, end: str) -> None:
    job.handle_task_end(2, 3, 5.0)
    if end == "interrupted":
        assert texts(job.handle_interrupt(signal.SIGTERM, 5.1)).startswith(
            "SIGTERM: terminating chief, worker 0"
        )
    else:
        assert texts(job.handle_cancellation("Slurm wants it", signal.SIGTERM, 5.1)) == "Slurm wants it"
    assert job.termination_signal is signal.SIGTERM
    assert job.outcome == "the job failed with exit code 3"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_tasks_that_an_interrupt_ends_after_a_failure_have_not_also_failed(
    job: Supervisor, signum: signal.Signals
) -> None:
    job.handle_task_end(2, 3, 5.0)
    job.handle_interrupt(signum, 5.1)
    assert job.handle_task_end(0, 128 + signum, 5.2) == []
    assert job.handle_task_end(1, 128 + signum, 5.2) == []


def test_a_task_that_is_lost_after_a_failure_ends_the_job(job: Supervisor) -> None:
    job.handle_task_end(2, 3, 5.0)
    assert job.handle_task_loss(1, "its connection broke", 5.1) == []
    assert job.termination_signal is None
    assert job.handle_task_loss(0, "its connection broke", 5.2) == []
    assert job.termination_signal is signal.SIGTERM
    assert job.exit_code == 3


def test_a_task_that_does_not_end_is_killed_after_the_grace_time(job: Supervisor) -> None:
    job.handle_task_end(1, 1, 5.0)
    job.tick(7.0)
    assert job.next_tick_s == 17.0
    assert job.tick(16.9) == []
    assert texts(job.tick(17.0)) == "chief, worker 1 did not end within 10 s: killing"
    assert job.termination_signal is signal.SIGKILL
    assert job.exit_code == 1


def test_workers_that_stay_after_the_chief_are_waited_for_and_then_ended_with_0(job: Supervisor) -> None:
    job.handle_task_end(0, 0, 100.0)
    assert job.termination_signal is None
    assert job.tick(101.0) == []
    assert texts(job.tick(102.0)) == "the chief has finished; waiting up to 60 s for worker 0, worker 1"
    assert job.tick(103.0) == []
    assert "did not end within 60 s" in texts(job.tick(160.0))
    assert job.termination_signal is signal.SIGTERM
    job.handle_task_end(1, 143, 160.1)
    job.handle_task_end(2, 143, 160.1)
    assert job.exit_code == 0


def test_a_worker_that_fails_after_the_chief_fails_the_job(job: Supervisor) -> None:
    job.handle_task_end(0, 0, 1.0)
    assert ReportFailure(1, 4) in job.handle_task_end(1, 4, 2.0)
    assert job.exit_code == 4


@pytest.mark.parametrize(
    ("got", "passed_on", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGHUP, signal.SIGTERM, 129),
    ],
)
def test_a_signal_ends_the_job(
    job: Supervisor, got: signal.Signals, passed_on: signal.Signals, code: int
) -> None:
    assert got.name in texts(job.handle_interrupt(got, 1.0))
    assert job.termination_signal is passed_on
    for rank in range(3):
        assert job.handle_task_end(rank, 1, 1.5) == []
    assert job.exit_code == code


def test_after_ctrl_c_processes_that_tasks_have_left_get_sigterm(job: Supervisor) -> None:
    job.handle_interrupt(signal.SIGINT, 1.0)
    for rank in range(3):
        job.handle_task_end(rank, 130, 1.5)
    assert job.termination_signal is signal.SIGTERM


def test_the_second_ctrl_c_kills_immediately(job: Supervisor) -> None:
    job.handle_interrupt(signal.SIGINT, 1.0)
    assert job.handle_interrupt(signal.SIGINT, 1.1) == []  # the same key stroke, passed on by a wrapper
    assert job.termination_signal is signal.SIGINT
    assert "killing" in texts(job.handle_interrupt(signal.SIGINT, 2.0))
    assert job.termination_signal is signal.SIGKILL
    assert job.handle_interrupt(signal.SIGINT, 3.0) == []
    assert job.exit_code == 130


def test_a_second_sigterm_changes_nothing(job: Supervisor) -> None:
    job.handle_interrupt(signal.SIGTERM, 1.0)
    assert job.handle_interrupt(signal.SIGTERM, 5.0) == []
    assert job.termination_signal is signal.SIGTERM
    assert job.next_tick_s == 11.0


def test_a_chief_that_leaves_for_the_queue_has_not_failed() -> None:
    job = Supervisor(LABELS, grace_s=10, wind_down_s=60, requeue_code=75)
    assert job.handle_task_end(0, 75, 0.0) == []
    assert job.phase is Phase.WINDING_DOWN
    for rank in range(1, len(LABELS)):
        job.handle_task_end(rank, 0, 1.0)
    assert (job.exit_code, job.failed, job.outcome) == (
        75,
        False,
        "the job stopped at a checkpoint to be requeued",
    )


def test_a_worker_that_ends_with_that_code_has_failed() -> None:
    job = Supervisor(LABELS, grace_s=10, wind_down_s=60, requeue_code=75)
    assert isinstance(job.handle_task_end(1, 75, 0.0)[0], ReportFailure)
    assert job.failed


@pytest.fixture
def restarting() -> Supervisor:
    return Supervisor(LABELS, grace_s=10, wind_down_s=60, max_restarts=2)


def test_a_dead_worker_is_restarted_after_a_growing_pause(restarting: Supervisor) -> None:
    assert restarting.handle_task_end(2, 137, 5.0) == [ReportRestart(2, 137, 1, 2, 1.0)]
    assert restarting.is_restarting(2)
    assert restarting.next_tick_s == 6.0
    assert restarting.due_restarts(5.9) == []
    assert restarting.due_restarts(6.0) == [2]
    assert not restarting.is_restarting(2)
    assert restarting.handle_task_end(2, 1, 7.0) == [ReportRestart(2, 1, 2, 2, 2.0)]
    assert restarting.due_restarts(9.0) == [2]
    assert restarting.handle_task_end(2, 1, 10.0) == [ReportFailure(2, 1)]
    assert restarting.exit_code == 1


def test_each_worker_has_its_own_restarts(restarting: Supervisor) -> None:
    restarting.handle_task_end(1, 137, 5.0)
    assert restarting.handle_task_end(2, 137, 5.5) == [ReportRestart(2, 137, 1, 2, 1.0)]
    assert restarting.due_restarts(6.2) == [1]
    assert restarting.due_restarts(6.5) == [2]


@pytest.mark.parametrize("code", [2, 126, 127])
def test_an_error_that_would_repeat_is_not_restarted(restarting: Supervisor, code: int) -> None:
    assert restarting.handle_task_end(2, code, 5.0) == [ReportFailure(2, code)]
    other = Supervisor(LABELS, grace_s=10, wind_down_s=60, max_restarts=2)
    assert other.handle_task_end(2, 1, 5.0, would_repeat=True) == [ReportFailure(2, 1)]


def test_the_chief_is_not_restarted(restarting: Supervisor) -> None:
    assert restarting.handle_task_end(0, 137, 5.0) == [ReportFailure(0, 137)]
    assert restarting.handle_task_end(1, 137, 5.1) == []  # nor a worker after it


@pytest.mark.parametrize("end", ["chief succeeds", "chief fails", "interrupted", "lost", "cancelled"])
def test_nothing_is_restarted_once_the_job_ends(restarting: Supervisor, end: str) -> None:
    restarting.handle_task_end(1, 0, 4.0)
    restarting.handle_task_end(2, 137, 5.0)
    match end:
        case "chief succeeds":
            restarting.handle_task_end(0, 0, 5.5)
        case "chief fails":
            restarting.handle_task_end(0, 1, 5.5)
        case "interrupted":
            restarting.handle_interrupt(signal.SIGINT, 5.5)
        case "lost":
            restarting.handle_task_loss(2, "its node is gone", 5.5)
        case _:
            restarting.handle_cancellation("Slurm wants it", signal.SIGTERM, 5.5)
    assert restarting.due_restarts(100.0) == []
    restarting.handle_task_end(0, 143, 5.6)
    assert not restarting.has_running_tasks


def test_a_worker_that_dies_with_the_system_is_not_restarted(restarting: Supervisor) -> None:
    restarting.handle_system_loss("the CS system is gone", 5.0, report_limit_s=3.0)
    assert restarting.handle_task_end(2, 1, 6.0) == [ReportFailure(2, 1)]
