"""The plan of the local scheduler and the text of --dry-run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs_toolkit.errors import UsageError
from csrun.commands.scheduler_flags import Where
from csrun.jobs.layout import JobLayout
from csrun.schedulers.base import LaunchContext, LaunchPlan, LaunchRequest
from csrun.schedulers.local.plan import describe, make_plan
from csrun.schedulers.registry import scheduler
from csrun.site import Site
from csrun.tasks.environment import Toolkit

DRY_RUN = """\
job local-20261120-101530-1a2b (launcher local), nothing is started: 3 tasks on this machine
working directory: '/home/me/my runs'
unset for every task: PYTHONPATH TF_CONFIG
set for every task:
  PATH=/opt/cs/words:/opt/cs/.venv/bin:/usr/bin
  CSRUN_PYTHON=/opt/cs/.venv/bin/python
  CSRUN_PYTHONPATH=/mine
  PYTHONPATH=/opt/cs
  PYTHONUNBUFFERED=1
  CSRUN_JOB_ID=local-20261120-101530-1a2b
  CSRUN_NUM_TASKS=3
  CSRUN_LOG_DIR='/home/me/my runs/csrun_logs/local-20261120-101530-1a2b'
  CSRUN_JOB_TOKEN=(random, drawn at the start, never shown)
  CSRUN_NODE=(name of this machine)
chief: rank 0, node 0, CPUs 0,1
  CSRUN_RANK=0
  CSRUN_ROLE=chief
  CSRUN_TASK_INDEX=0
  TF_CONFIG='{"cluster": {"chief": ["127.0.0.1:23111"], "worker": ["127.0.0.1:23112", "127.0.0.1:23113"]}, \
"task": {"type": "chief", "index": 0}}'
  log:     '/home/me/my runs/csrun_logs/local-20261120-101530-1a2b/chief-0.log'
  command: python run.py --note 'two words; $HOME' ''
worker 0: rank 1, node 1, CPUs 2,3
  CSRUN_RANK=1
  CSRUN_ROLE=worker
  CSRUN_TASK_INDEX=0
  TF_CONFIG='{"cluster": {"chief": ["127.0.0.1:23111"], "worker": ["127.0.0.1:23112", "127.0.0.1:23113"]}, \
"task": {"type": "worker", "index": 0}}'
  log:     '/home/me/my runs/csrun_logs/local-20261120-101530-1a2b/worker-0.log'
  command: python run.py --note 'two words; $HOME' ''
worker 1: rank 2, node 1, CPUs 4,5
  CSRUN_RANK=2
  CSRUN_ROLE=worker
  CSRUN_TASK_INDEX=1
  TF_CONFIG='{"cluster": {"chief": ["127.0.0.1:23111"], "worker": ["127.0.0.1:23112", "127.0.0.1:23113"]}, \
"task": {"type": "worker", "index": 1}}'
  log:     '/home/me/my runs/csrun_logs/local-20261120-101530-1a2b/worker-1.log'
  command: python run.py --note 'two words; $HOME' ''
"""


def planned(
    layout: JobLayout, cpus: int = 8, log_dir: Path | None = None, mount_dirs: tuple[Path, ...] = ()
) -> LaunchPlan:
    request = LaunchRequest(
        command=("python", "run.py", "--note", "two words; $HOME", ""),
        executed=("python", "run.py", "--note", "two words; $HOME", ""),
        layout=layout,
        log_dir=log_dir,
        mount_dirs=mount_dirs,
        grace_s=10,
        wind_down_s=60,
    )
    context = LaunchContext(
        job_id="local-20261120-101530-1a2b",
        cwd=Path("/home/me/my runs"),
        environment={"PATH": "/usr/bin", "PYTHONPATH": "/mine", "TF_CONFIG": "{}", "HOME": "/home/me"},
        toolkit=Toolkit(Path("/opt/cs/.venv/bin"), Path("/opt/cs"), Path("/opt/cs/words")),
        site=Site(),
        cpus=tuple(range(cpus)),
    )
    return make_plan(request, context, "local")


def test_dry_run_prints_exactly_what_would_run() -> None:
    plan = planned(JobLayout(2, 2, cpus_per_task=2, single_task_nodes=1))
    assert describe(plan) == DRY_RUN


def test_a_job_of_one_task_lists_it_as_chief_and_worker() -> None:
    (task,) = planned(JobLayout(1, 1)).tasks
    assert task.label == "chief"
    assert task.values["TF_CONFIG"] == (
        '{"cluster": {"chief": ["127.0.0.1:23111"], "worker": ["127.0.0.1:23111"]}, '
        '"task": {"type": "chief", "index": 0}}'
    )


def test_more_cpus_than_the_machine_has_is_one_line_and_no_pinning() -> None:
    plan = planned(JobLayout(1, 3, cpus_per_task=4), cpus=8)
    assert [notice for notice in plan.notices if "CPU" in notice] == [
        "3 tasks x 4 CPUs on a machine of 8 CPUs: the tasks share them and none is pinned"
    ]
    assert not any(task.cpus for task in plan.tasks)


def test_a_job_that_fits_prints_nothing_about_cpus() -> None:
    assert not [notice for notice in planned(JobLayout(1, 2, cpus_per_task=4)).notices if "CPU" in notice]


def test_several_nodes_and_mounts_are_explained() -> None:
    notices = "\n".join(planned(JobLayout(3, 2), mount_dirs=(Path("/data"),)).notices)
    assert "--total-nodes=3: there is no cluster here" in notices
    assert "--mount-dirs has no effect here" in notices
    assert "--cyclic has no effect here" in "\n".join(planned(JobLayout(1, 2, cyclic=True)).notices)


def test_flags_of_another_scheduler_are_named() -> None:
    where = Where(None, {"--time": "1:00:00", "--mem": "4G"})
    assert where.foreign(scheduler("local")) == "--time, --mem: no effect with the launcher 'local'"
    assert where.foreign(scheduler("slurm")) is None


def test_the_log_dir_of_the_user_is_taken_as_it_is() -> None:
    assert planned(JobLayout(1, 1), log_dir=Path("logs")).log_dir == Path("/home/me/my runs/logs")
    assert planned(JobLayout(1, 1), log_dir=Path("/elsewhere")).log_dir == Path("/elsewhere")


def test_more_tasks_than_ports_are_refused() -> None:
    with pytest.raises(UsageError, match="make 100000 tasks; expected at most 42425"):
        planned(JobLayout(10, 10_000))
