"""Events in srun's stderr, and the lines that are shown."""

from __future__ import annotations

import pytest

from csrun.schedulers.slurm.client import SlurmClient
from csrun.schedulers.slurm.srun import SrunStarter


def shown(text: str, ending: bool = False) -> tuple[SrunStarter, list[bytes]]:
    lines = SrunStarter(SlurmClient({}))
    return lines, lines.feed(text.encode(), ending)


@pytest.mark.parametrize(
    "text",
    [
        "srun: job 12 queued and waiting for resources\n",
        "srun: job 12 has been allocated resources\n",
        "salloc: Granted job allocation 12\n",
    ],
)
def test_the_number_of_the_job(text: str) -> None:
    assert shown(text)[0].job_id == "12"


def test_lines_of_srun_that_agents_report_better_are_hidden() -> None:
    text = "srun: error: cs-node3: task 2: Exited with exit code 7\nsrun: error: Node failure on cs-node4\n"
    lines, visible = shown(text)
    assert lines.task_failed
    assert visible == [b"error: Node failure on cs-node4"]


def test_srun_s_comments_on_the_end_are_not_shown_while_it_is_ours() -> None:
    text = (
        "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.\n"
        "slurmstepd: error: *** STEP 4.0 ON cs-node1 CANCELLED AT 2026-11-20T10:00:00 ***\n"
        "srun: error: cs-node1: task 0: Terminated\nsrun: Terminating StepId=4.0\n"
    )
    assert shown(text, ending=True)[1] == []
    assert len(shown(text, ending=False)[1]) == 4


def test_why_slurm_has_ended_the_job() -> None:
    line = (
        "slurmstepd: error: *** STEP 4.0 ON cs-node1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***\n"
    )
    assert shown(line)[0].cancel_reason == "time limit"
    line = line.replace("TIME LIMIT", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
    assert shown(line)[0].cancel_reason == "node failure"


@pytest.mark.parametrize(
    "text",
    [
        "srun: Job has been cancelled\n",
        "srun: error: Job allocation 5 has been revoked\n",
        "srun: Force Terminated job 5\n",
        "srun: Force Terminated JobId=5\n",
    ],
)
def test_a_job_that_was_cancelled_while_it_waited(text: str) -> None:
    assert shown(text)[0].withdrawn


def test_a_refusal_is_no_cancellation() -> None:
    lines, visible = shown("srun: error: invalid partition specified: nope\n")
    assert not lines.withdrawn
    assert visible == [b"error: invalid partition specified: nope"]
    assert lines.summary() == "invalid partition specified: nope"
