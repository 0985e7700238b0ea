"""Before a job goes back into the queue because a node was lost: waits until Slurm knows of that node.

A heterogeneous job that is put back while one of its nodes is dead and not yet DOWN keeps that node in its
request and waits for it for ever (Slurm 22.05). Slurm notices a dead node after SlurmdTimeout, 300 s by
default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from csrun.schedulers.slurm.allocation import Allocation, read_allocation
from csrun.schedulers.slurm.client import SlurmClient
from csrun.schedulers.slurm.errors import SlurmError

PROBE_LIMIT_S = 10.0
POLL_S = 2.0


def await_lost_nodes(
    names: Collection[str], environment: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Returns when every one of these nodes either answers or is DOWN for Slurm.

    Slurm itself may put the job back into the queue meanwhile, which ends this process.

    Args:
        names: nodes of this process's job on which a task was lost.
        environment: of a batch script.
        say: tells the user one line.

    Raises:
        SlurmError: the controller does not answer.
    """
    client = SlurmClient(environment)
    allocation = read_allocation(environment)
    silent = {name for name in names if allocation is None or not _answers(client, allocation, name)}
    if silent:
        say(
            f"waiting until Slurm knows that {', '.join(sorted(silent))} is lost, which takes it some minutes"
        )
    while silent - _down(client, silent):
        time.sleep(POLL_S)


def _answers(client: SlurmClient, allocation: Allocation, name: str) -> bool:
    """Whether a step can be run on the node: its daemon may be well though a task was lost."""
    group = next((number for number, nodes in enumerate(allocation.groups) if name in nodes), 0)
    where = [f"--jobid={allocation.job_id}", f"--nodelist={name}"]
    where += [f"--het-group={group}"] if allocation.heterogeneous else []
    try:
        client.run(
            *("srun", *where, "--nodes=1", "--ntasks=1", "--overlap", "--input=none", "--mpi=none", "true"),
            limit_s=PROBE_LIMIT_S,
        )
    except SlurmError:
        return False
    return True


def _down(client: SlurmClient, names: Collection[str]) -> set[str]:
    text = client.run("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %t")
    states = (line.split() for line in text.splitlines())
    return {name for name, state in states if state.startswith(("down", "drain", "drng", "fail"))}
