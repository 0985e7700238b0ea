"""The role of a process in its job, chief or worker, from the environment.

The same program runs in every task. `TaskInfo.from_environment` reads the first of these that is set: the
CSRUN_* variables of the launcher, TF_CONFIG, the variables of a Slurm step. Without any of them the process
is a whole job, chief and worker in one.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from secrets import token_hex
from typing import Any, Literal

from csrun.errors import RoleError

Role = Literal["chief", "worker"]

# Rank r has this port + r in TF_CONFIG. Nothing listens there: programs only count the entries.
TF_CONFIG_PORT_BASE = 23111

JOB_VARIABLES = (
    "CSRUN_JOB_ID",
    "CSRUN_JOB_TOKEN",
    "CSRUN_RANK",
    "CSRUN_NUM_TASKS",
    "CSRUN_ROLE",
    "CSRUN_TASK_INDEX",
    "CSRUN_LOG_DIR",
    "CSRUN_WAIT",
    "CSRUN_REQUEUE",
)
"""Variables that the launcher sets for each of its tasks."""

# Exit code of a chief after a checkpoint that SIGUSR1 has requested, if its job then goes back into the
# queue: EX_TEMPFAIL of sysexits.h, "try again later". Slurm's RequeueExit is often set to it.
EXIT_REQUEUE = 75


def role_of_rank(rank: int) -> tuple[Role, int]:
    """Return role and index: rank 0 is chief 0, rank r is worker r - 1."""
    return ("chief", 0) if rank == 0 else ("worker", rank - 1)


def tf_config(rank: int, hosts: Sequence[str]) -> dict[str, Any]:
    """Return TF_CONFIG of one task, which input functions read to shard their data.

    Args:
        rank: the task's rank.
        hosts: of every task, by rank; a single task is chief and worker at the same address.
    """
    addresses = [f"{host}:{TF_CONFIG_PORT_BASE + number}" for number, host in enumerate(hosts)]
    role, index = role_of_rank(rank)
    return {
        "cluster": {"chief": addresses[:1], "worker": addresses[1:] or addresses[:1]},
        "task": {"type": role, "index": index},
    }


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task of a job.

    Attributes:
        role: "chief" or "worker".
        index: number within the role; 0 for the chief.
        num_workers: number of workers; 1 for a job of one task.
        job_id: the same in all tasks of the job, unique among jobs.
        token: the same in all tasks of the job; a random secret if csrun has started them, otherwise derived
            from the id of the job, which only guards against mix-ups.
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
    token: str
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
        if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env:
            return _from_slurm_step(env)
        job_id, token = _own_job(os.getpid())
        return _task(env, 0, 1, job_id, token)

    def tf_config(self) -> dict[str, Any]:
        """Return TF_CONFIG for this task; all addresses name this host, only their number matters."""
        return tf_config(self.rank, [self.host] * self.num_tasks)


def _task(env: Mapping[str, str], rank: int, num_tasks: int, job_id: str, token: str) -> TaskInfo:
    role, index = role_of_rank(rank)
    return TaskInfo(
        role=role,
        index=index,
        num_workers=max(1, num_tasks - 1),
        job_id=job_id,
        token=token,
        host=env.get("SLURMD_NODENAME") or socket.gethostname(),
        rank=rank,
        num_tasks=num_tasks,
        in_process_worker=num_tasks == 1,
        wait=env.get("CSRUN_WAIT") == "1",
        requeue=env.get("CSRUN_REQUEUE") == "1",
    )


@lru_cache(maxsize=1)
def _own_job(pid: int) -> tuple[str, str]:
    """Return job id and token of a process without a launcher, the same at every call in that process."""
    return f"single-{socket.gethostname()}-{pid}-{token_hex(2)}", token_hex(16)


def _from_launcher(env: Mapping[str, str]) -> TaskInfo:
    rank = _whole_number(env, "CSRUN_RANK")
    num_tasks = _whole_number(env, "CSRUN_NUM_TASKS")
    _check_rank(rank, num_tasks, "CSRUN_RANK", "CSRUN_NUM_TASKS")
    task = _task(env, rank, num_tasks, _text(env, "CSRUN_JOB_ID"), _text(env, "CSRUN_JOB_TOKEN"))
    given = (env.get("CSRUN_ROLE", task.role), env.get("CSRUN_TASK_INDEX", str(task.index)))
    if given != (task.role, str(task.index)):
        raise RoleError(
            f"CSRUN_ROLE={given[0]} and CSRUN_TASK_INDEX={given[1]} contradict CSRUN_RANK={rank}, which is "
            f"{task.role} {task.index}: leave the CSRUN_ variables as csrun_wse has set them"
        )
    return task


def _from_slurm_step(env: Mapping[str, str]) -> TaskInfo:
    # In a heterogeneous step, ranks and SLURM_NTASKS count across all components, and SLURM_STEP_NUM_TASKS
    # only its own component. In other steps SLURM_NTASKS may be that of the whole allocation.
    count_name = "SLURM_NTASKS"
    if "SLURM_HET_SIZE" not in env and "SLURM_STEP_NUM_TASKS" in env:
        count_name = "SLURM_STEP_NUM_TASKS"
    rank = _whole_number(env, "SLURM_PROCID")
    num_tasks = _whole_number(env, count_name)
    _check_rank(rank, num_tasks, "SLURM_PROCID", count_name)
    job_id = f"slurm-{_text(env, 'SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}"
    return _task(env, rank, num_tasks, job_id, _derive_token(env, job_id))


def _from_tf_config(env: Mapping[str, str]) -> TaskInfo:
    try:
        config = json.loads(env["TF_CONFIG"])
        cluster = config["cluster"]
        kind, index = config["task"]["type"], int(config["task"]["index"])
        chiefs, workers = list(cluster.get("chief", [])), list(cluster.get("worker", []))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RoleError(
            f"TF_CONFIG is {env['TF_CONFIG']!r}; expected "
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
    return _task(env, rank, num_tasks, job_id, _derive_token(env, canonical))


def _derive_token(env: Mapping[str, str], identity: str) -> str:
    # Tasks that csrun has not started share no secret, but must derive the same token.
    return env.get("CSRUN_JOB_TOKEN") or sha256(f"csrun job token of {identity}".encode()).hexdigest()[:32]


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise RoleError(
            f"{name} is not set although other variables of the job are; expected all of them: start the "
            f"program with csrun_wse or srun, or unset the others to run as one process"
        )
    return value


def _whole_number(env: Mapping[str, str], name: str) -> int:
    text = _text(env, name)
    if not (text.isascii() and text.isdigit()):
        raise RoleError(
            f"{name} is {text!r}; expected a whole number: leave it as the launcher has set it, "
            f"or unset the job's variables to run as one process"
        )
    return int(text)


def _check_rank(rank: int, num_tasks: int, rank_name: str, count_name: str) -> None:
    if not 0 <= rank < num_tasks:
        raise RoleError(
            f"{rank_name} is {rank} and {count_name} says {num_tasks} tasks; expected a number below that: "
            f"leave the variables as the launcher has set them"
        )
