from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from csrun.errors import RoleError
from csrun.tasks.place import role_of_rank, tf_config
from csrun.tasks.roles import TaskInfo

LAUNCHED = {
    "CSRUN_JOB_ID": "local-1",
    "CSRUN_JOB_TOKEN": "secret",
    "CSRUN_RANK": "2",
    "CSRUN_NUM_TASKS": "4",
    "CSRUN_ROLE": "worker",
    "CSRUN_TASK_INDEX": "1",
}


def place(task: TaskInfo) -> tuple[str, int, int, int, int, bool]:
    return (task.role, task.index, task.num_workers, task.rank, task.num_tasks, task.in_process_worker)


def test_the_launchers_variables_come_first() -> None:
    other = {"TF_CONFIG": json.dumps(tf_config(0, ["a", "b"])), "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    task = TaskInfo.from_environment({**other, **LAUNCHED})
    assert place(task) == ("worker", 1, 3, 2, 4, False)
    assert (task.job_id, task.token) == ("local-1", "secret")


def test_a_job_of_one_task_is_a_chief_with_the_worker_inside() -> None:
    env = {
        **LAUNCHED,
        "CSRUN_RANK": "0",
        "CSRUN_NUM_TASKS": "1",
        "CSRUN_ROLE": "chief",
        "CSRUN_TASK_INDEX": "0",
    }
    task = TaskInfo.from_environment(env)
    assert place(task) == ("chief", 0, 1, 0, 1, True)
    config = task.tf_config()
    assert config["cluster"]["chief"] == config["cluster"]["worker"]
    assert config["task"] == {"type": "chief", "index": 0}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"CSRUN_RANK": "four"}, "CSRUN_RANK is 'four'"),
        ({"CSRUN_RANK": "4"}, "CSRUN_RANK is 4 and CSRUN_NUM_TASKS says 4"),
        ({"CSRUN_RANK": ""}, "CSRUN_RANK is not set"),
        ({"CSRUN_JOB_TOKEN": ""}, "CSRUN_JOB_TOKEN is not set"),
        ({"CSRUN_ROLE": "chief"}, "contradict CSRUN_RANK=2"),
    ],
)
def test_unusable_launcher_variables_are_named(change: dict[str, str], named: str) -> None:
    with pytest.raises(RoleError, match=named):
        TaskInfo.from_environment({**LAUNCHED, **change})


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 7])
def test_every_task_finds_itself_in_its_tf_config(num_tasks: int) -> None:
    tasks = [
        TaskInfo.from_environment({"TF_CONFIG": json.dumps(tf_config(rank, ["127.0.0.1"] * num_tasks))})
        for rank in range(num_tasks)
    ]
    assert [task.rank for task in tasks] == list(range(num_tasks))
    assert [(task.role, task.index) for task in tasks] == [role_of_rank(rank) for rank in range(num_tasks)]
    assert {task.num_tasks for task in tasks} == {num_tasks}
    assert {task.num_workers for task in tasks} == {max(1, num_tasks - 1)}
    assert len({task.job_id for task in tasks}) == len({task.token for task in tasks}) == 1


def test_jobs_with_other_addresses_have_other_identities() -> None:
    one, two = (
        TaskInfo.from_environment({"TF_CONFIG": json.dumps(tf_config(0, [host, host]))})
        for host in ("a", "b")
    )
    assert one.job_id != two.job_id
    assert one.token != two.token


def test_the_token_of_tasks_that_csrun_has_not_started_is_a_secret_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [
        TaskInfo.from_environment({"TF_CONFIG": json.dumps(tf_config(rank, ["a", "b"]))}) for rank in range(2)
    ]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "one"))
    (first,) = {task.token for task in tasks}
    assert (tmp_path / "one/csrun/tasks.secret").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "two"))
    (second,) = {task.token for task in tasks}
    assert first != second
    assert first not in repr(tasks)
    (tmp_path / "two/csrun/tasks.secret").chmod(0o644)
    with pytest.raises(RoleError, match=r"cannot prove that they belong together: .* mode 0644 .* CSRUN_JOB"):
        tasks[0].token  # noqa: B018
    given = TaskInfo.from_environment({"TF_CONFIG": json.dumps(tf_config(0, ["a"])), "CSRUN_JOB_TOKEN": "x"})
    assert given.token == "x"


def test_a_task_by_itself_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", "/nowhere")
    alone = TaskInfo.from_environment({"TF_CONFIG": json.dumps(tf_config(0, ["a"]))})
    assert len(alone.token) == 32
    # Nor does one of several, before the secret is needed.
    TaskInfo.from_environment({"TF_CONFIG": json.dumps(tf_config(0, ["a", "b"]))})


def test_tf_config_ports_follow_the_ranks() -> None:
    assert tf_config(2, ["h", "h", "i"]) == {
        "cluster": {"chief": ["h:23111"], "worker": ["h:23112", "i:23113"]},
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("not json", "TF_CONFIG is 'not json'"),
        ("[]", "TF_CONFIG is"),
        ('{"cluster": {}}', "TF_CONFIG is"),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}', "0 chief and 1 worker"),
        ('{"cluster": {"chief": ["a"], "worker": ["b"]}, "task": {"type": "ps", "index": 0}}', "is 'ps'"),
        (
            '{"cluster": {"chief": ["a"], "worker": ["b"]}, "task": {"type": "worker", "index": 1}}',
            "worker 1",
        ),
        ('{"cluster": {"chief": ["a"], "worker": ["b"]}, "task": {"type": "chief", "index": 1}}', "chief 1"),
    ],
)
def test_an_unusable_tf_config_is_refused(text: str, named: str) -> None:
    with pytest.raises(RoleError, match=named):
        TaskInfo.from_environment({"TF_CONFIG": text})


STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}


def test_a_slurm_step_is_a_job() -> None:
    task = TaskInfo.from_environment({**STEP, "SLURM_NTASKS": "8", "SLURMD_NODENAME": "node7"})
    assert place(task) == ("worker", 0, 2, 1, 3, False)
    assert (task.job_id, task.host) == ("slurm-77.3", "node7")
    assert task.token == TaskInfo.from_environment({**STEP, "SLURM_PROCID": "0"}).token


def test_ranks_count_on_across_a_heterogeneous_step() -> None:
    env = {
        **STEP,
        "SLURM_HET_SIZE": "2",
        "SLURM_NTASKS": "5",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "4",
    }
    assert place(TaskInfo.from_environment(env)) == ("worker", 3, 4, 4, 5, False)


def test_a_batch_script_is_no_task_of_a_step() -> None:
    task = TaskInfo.from_environment({"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"})
    assert place(task) == ("chief", 0, 1, 0, 1, True)


def test_a_lone_process_is_one_job_however_often_it_asks() -> None:
    first, second = TaskInfo.from_environment({}), TaskInfo.from_environment({"TF_CONFIG": "{}"})
    assert place(first) == ("chief", 0, 1, 0, 1, True)
    assert first == second
    assert str(os.getpid()) in first.job_id
    assert len(first.token) == 32
