"""The role of a process in its job, chief or worker, from the environment.

The same program runs in every task. `TaskInfo.from_environment` reads the first of these that is set: the
CSRUN_* variables of the launcher, TF_CONFIG, the variables of a scheduler that has started the process as a
task. Without any of them the process is a whole job, chief and worker in one.
"""

from __future__ import annotations

import json
import os
import reprlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from secrets import token_hex
from typing import Any

from cs_toolkit.security.proofs import prove
from cs_toolkit.security.secret_file import SecretFileError, read_secret, user_secret_file
from csrun.errors import RoleError
from csrun.schedulers.registry import node_name, task_place
from csrun.tasks.place import Role, read_rank, read_text, role_of_rank, tf_config


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task of a job.

    Attributes:
        role: "chief" or "worker".
        index: number within the role; 0 for the chief.
        num_workers: number of workers; 1 for a job of one task.
        job_id: the same in all tasks of the job, unique among jobs.
        given_token: the job's secret, from the launcher; empty in tasks that csrun has not started.
        host: name of the machine that this task runs on.
        rank: 0 for the chief, index + 1 for a worker.
        num_tasks: number of tasks of the job.
        in_process_worker: this chief is also worker 0, in the same process.
        wait: the job waits for a busy CS system instead of failing.
        requeue: after a checkpoint that SIGUSR1 has requested, the job ends with code 75 and is restarted.
    """

    role: Role
    index: int
    num_workers: int
    job_id: str
    given_token: str = field(repr=False)
    host: str
    rank: int
    num_tasks: int
    in_process_worker: bool
    wait: bool = False
    requeue: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> TaskInfo:
        """Read the place of the task from `environment` (default: that of this process).

        Raises:
            RoleError: a variable is set but unusable; the message names it.
        """
        env = os.environ if environment is None else environment
        if any(name in env for name in ("CSRUN_RANK", "CSRUN_NUM_TASKS", "CSRUN_JOB_ID")):
            return _from_launcher(env)
        if env.get("TF_CONFIG", "").strip() not in ("", "{}"):
            return _from_tf_config(env)
        if place := task_place(env):
            token = env.get("CSRUN_JOB_TOKEN", "")
            return _task(env, place.rank, place.num_tasks, place.job, token, place.node)
        job_id, token = _own_job(os.getpid())
        return _task(env, 0, 1, job_id, token)

    @property
    def token(self) -> str:
        """The job's secret, the same in all of its tasks.

        Tasks that csrun has not started know nothing of each other but the job's name. They derive its secret
        from one of their user, in a file that only this user can read, which is made when it is first needed.

        Raises:
            RoleError: the file cannot be used.
        """
        if self.given_token:
            return self.given_token
        try:
            secret = read_secret(user_secret_file("tasks.secret"))
        except SecretFileError as error:
            raise RoleError(
                f"the tasks of job {self.job_id} were not started by csrun, and cannot prove that they "
                f"belong together: {error}; correct that, or set CSRUN_JOB_TOKEN to the same random text in "
                "all of them"
            ) from None
        return prove(secret, "job", self.job_id)

    def tf_config(self) -> dict[str, Any]:
        """Return TF_CONFIG for this task."""
        # All addresses name this host: those of the others are unknown here, and only their number matters.
        return tf_config(self.rank, [self.host] * self.num_tasks)


def _task(
    env: Mapping[str, str], rank: int, num_tasks: int, job_id: str, token: str, node: str = ""
) -> TaskInfo:
    role, index = role_of_rank(rank)
    return TaskInfo(
        role=role,
        index=index,
        num_workers=max(1, num_tasks - 1),
        job_id=job_id,
        given_token=token,
        host=env.get("CSRUN_NODE") or node or node_name(env),
        rank=rank,
        num_tasks=num_tasks,
        in_process_worker=num_tasks == 1,
        wait=env.get("CSRUN_WAIT") == "1",
        requeue=env.get("CSRUN_REQUEUE") == "1",
    )


@lru_cache(maxsize=1)
def _own_job(pid: int) -> tuple[str, str]:
    """Return job id and token of a process without a launcher, the same at every call in that process."""
    # The pid is an argument, hence part of the cache's key: a forked child gets its own.
    return f"single-{socket.gethostname()}-{pid}-{token_hex(2)}", token_hex(16)


def _from_launcher(env: Mapping[str, str]) -> TaskInfo:
    rank, num_tasks = read_rank(env, "CSRUN_RANK", "CSRUN_NUM_TASKS")
    task = _task(env, rank, num_tasks, read_text(env, "CSRUN_JOB_ID"), read_text(env, "CSRUN_JOB_TOKEN"))
    given = (env.get("CSRUN_ROLE", task.role), env.get("CSRUN_TASK_INDEX", str(task.index)))
    if given != (task.role, str(task.index)):
        raise RoleError(
            f"CSRUN_ROLE={given[0]} and CSRUN_TASK_INDEX={given[1]} contradict CSRUN_RANK={rank}, which is "
            f"{task.role} {task.index}: leave the CSRUN_ variables as csrun_wse has set them"
        )
    return task


def _from_tf_config(env: Mapping[str, str]) -> TaskInfo:
    try:
        config = json.loads(env["TF_CONFIG"])
        cluster = config["cluster"]
        kind, index = config["task"]["type"], int(config["task"]["index"])
        chiefs, workers = list(cluster.get("chief", [])), list(cluster.get("worker", []))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RoleError(
            f"TF_CONFIG is {reprlib.repr(env['TF_CONFIG'])}; expected "
            f'{{"cluster": {{"chief": [..], "worker": [..]}}, "task": {{"type": .., "index": ..}}}}: '
            f"correct it, or unset it to run as one process"
        ) from error
    if len(chiefs) != 1 or not workers or kind not in ("chief", "worker"):
        raise RoleError(
            f"TF_CONFIG has {len(chiefs)} chief and {len(workers)} worker addresses and says that this task "
            f"is {kind!r}; expected one chief, at least one worker, and this task one of them: correct it, "
            f"or unset it"
        )
    peers = chiefs if kind == "chief" else workers
    if not 0 <= index < len(peers):
        raise RoleError(
            f"TF_CONFIG says that this task is {kind} {index}, and its cluster has {len(peers)} {kind} "
            f"addresses; expected an index below that: correct it, or unset it"
        )
    # A single task is listed twice, as chief and as worker at the same address.
    num_tasks = 1 if chiefs == workers else 1 + len(workers)
    rank = 0 if kind == "chief" or num_tasks == 1 else index + 1
    canonical = json.dumps({"chief": chiefs, "worker": workers})
    job_id = "tfconfig-" + sha256(canonical.encode()).hexdigest()[:12]
    token = env.get("CSRUN_JOB_TOKEN", "") or ("" if num_tasks > 1 else _own_job(os.getpid())[1])
    return _task(env, rank, num_tasks, job_id, token)
