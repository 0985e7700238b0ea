"""The place of a process in a job: its role, and the record of it that each scheduler reads."""

# The agent of a task runs a reader on the nodes without site-packages, so this module and the readers need
# only the toolkit and the standard library.

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from csrun.errors import RoleError

Role = Literal["chief", "worker"]

# Rank r has this port + r in TF_CONFIG. Nothing listens there: programs only count the entries.
TF_CONFIG_PORT_BASE = 23111

# Variables that the launcher sets for each of its tasks.
JOB_VARIABLES = (
    "CSRUN_JOB_ID",
    "CSRUN_JOB_TOKEN",
    "CSRUN_RANK",
    "CSRUN_NUM_TASKS",
    "CSRUN_ROLE",
    "CSRUN_TASK_INDEX",
    "CSRUN_NODE",
    "CSRUN_LOG_DIR",
    "CSRUN_WAIT",
    "CSRUN_REQUEUE",
    "CSRUN_RESTARTS",
    "CSRUN_ALLOW_INPUT_CHANGE",
    "CSRUN_INPUT_ORDER",
)

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
class TaskPlace:
    """The place of a task that a scheduler has started.

    Attributes:
        scheduler: title of the scheduler, for sentences: "Slurm".
        job: id of the job that no job of another scheduler has, the same in all its tasks: "slurm-12.0".
        job_id: the scheduler's id of the job.
        step_id: number of the step within the job; "" if the scheduler has no steps.
        rank: of the task.
        num_tasks: number of tasks of the job.
        node: the scheduler's name of this machine; "" if it does not report it.
        cpus_on_node: number of CPUs of the job on this node; 0 if unknown.
        launcher_host: address of the machine on which the scheduler's command runs; "" if unknown.
    """

    scheduler: str
    job: str
    job_id: str
    step_id: str
    rank: int
    num_tasks: int
    node: str = ""
    cpus_on_node: int = 0
    launcher_host: str = ""


# Returns the place of a process by its environment; None if the scheduler has not started it as a task.
PlaceReader = Callable[[Mapping[str, str]], TaskPlace | None]


def reader_arguments(reader: PlaceReader) -> tuple[str, str]:
    """Return the arguments with which another process finds a reader: `load_reader(*arguments)`.

    Args:
        reader: function of a module, not of a package, that can be imported without site-packages.
    """
    module = reader.__module__
    file = Path(str(sys.modules[module].__file__)).resolve()
    return str(file.parents[module.count(".")]), f"{module}:{reader.__qualname__}"


def load_reader(folder: str, reader: str) -> PlaceReader:
    """Import a reader, MODULE:FUNCTION in a folder of modules."""
    # At the end: the folder may be site-packages, and contain modules with the names of others.
    sys.path.append(folder)
    module, _, function = reader.partition(":")
    loaded: PlaceReader = getattr(import_module(module), function)
    return loaded


def read_text(environment: Mapping[str, str], name: str) -> str:
    """Return a variable of a job.

    Raises:
        RoleError: it is not set.
    """
    value = environment.get(name, "")
    if not value:
        raise RoleError(
            f"{name} is not set although other variables of the job are; expected all of them: start the "
            f"program with csrun_wse or the scheduler's command, or unset the others to run as one process"
        )
    return value


def read_number(environment: Mapping[str, str], name: str) -> int:
    """Return a variable of a job that is a whole number.

    Raises:
        RoleError: it is not set, or not a number.
    """
    text = read_text(environment, name)
    if not (text.isascii() and text.isdigit()):
        raise RoleError(
            f"{name} is {text!r}; expected a whole number: leave it as the launcher has set it, "
            f"or unset the job's variables to run as one process"
        )
    return int(text)


def read_rank(environment: Mapping[str, str], rank_name: str, count_name: str) -> tuple[int, int]:
    """Return the rank of a task and the number of tasks.

    Raises:
        RoleError: a variable is not a number, or the rank is not below the number of tasks.
    """
    rank, count = read_number(environment, rank_name), read_number(environment, count_name)
    if not 0 <= rank < count:
        raise RoleError(
            f"{rank_name} is {rank} and {count_name} says {count} tasks; expected a number below that: "
            f"leave the variables as the launcher has set them"
        )
    return rank, count
