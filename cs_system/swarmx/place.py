"""Where the hosts of a group meet: the file that its leader writes, and what Slurm says of a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cs_system.errors import BadOptionError, GroupError
from cs_toolkit.files import replace_file


@dataclass(frozen=True)
class GroupPlace:
    """A group whose systems are on several hosts.

    Attributes:
        count: Of systems, the leader among them.
        number: Of the process in its Slurm step; 0 leads.
        file: Written by the leader, read by the others.
        step_nodes: Nodes of the Slurm step; 0 where there is none.
    """

    count: int
    number: int
    file: Path
    step_nodes: int = 0


@dataclass(frozen=True)
class Meeting:
    """What is in the file.

    Attributes:
        host, port: Where the leader waits for the others.
        token: Of the group: who knows it may join, and is obeyed.
    """

    host: str
    port: int
    token: str

    def write(self, file: Path) -> None:
        """For the user alone.

        Raises:
            BadOptionError: the file cannot be written.
        """
        try:
            replace_file(file, json.dumps(asdict(self)) + "\n", 0o600)
        except OSError as error:
            raise BadOptionError(
                f"--group-file={file}: cannot be written: {error.strerror}; name a file in a directory that "
                "all hosts of the group share"
            ) from error

    @classmethod
    def read(cls, file: Path) -> Meeting:
        """The inverse.

        Raises:
            OSError: the file cannot be read; it may come yet.
            GroupError: it has something else.
        """
        text = file.read_text()
        try:
            fields = json.loads(text)
            return cls(str(fields["host"]), int(fields["port"]), str(fields["token"]))
        except (ValueError, KeyError, TypeError) as error:
            raise GroupError(f"{file}: this is no file of a group of CS systems") from error


def group_place(num_csx: int, file: Path | None, environment: Mapping[str, str]) -> GroupPlace | None:
    """The group that `cs_system serve` belongs to; None where all its systems are on this machine.

    Args:
        num_csx: Systems of the group.
        file: Where its hosts meet, if the user says it.
        environment: With Slurm's variables in a task of a step.

    Raises:
        BadOptionError: the numbers of systems and tasks differ; a single system has no group.
    """
    if num_csx == 1:
        if file is not None:
            raise BadOptionError(f"--group-file={file}: expected --num-csx=2 or more with it, got 1")
        return None
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks == 1:
        return None if file is None else GroupPlace(num_csx, 0, file)
    if tasks != num_csx:
        raise BadOptionError(
            f"--num-csx={num_csx} in a Slurm step of {tasks} tasks: each task is a CS system of the group; "
            f"give --num-csx={tasks}, or srun --ntasks={num_csx} (--ntasks=1: all on one machine)"
        )
    name = f"cs_group-{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}.json"
    nodes = int(environment["SLURM_STEP_NUM_NODES"])
    return GroupPlace(num_csx, int(environment["SLURM_PROCID"]), file or Path(name), nodes)
