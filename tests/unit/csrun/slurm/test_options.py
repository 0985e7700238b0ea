"""Options of Slurm in addition to nodes and tasks, and names of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.slurm.allocation import components
from csrun.schedulers.slurm.arguments import job_name, srun_cpu, srun_job
from csrun.schedulers.slurm.client import Node, parse_nodes
from csrun.schedulers.slurm.options import FLAGS, SlurmOptions
from csrun.schedulers.slurm.queue import owners_out_of_use
from csrun.site import Site

GIVEN = {
    "--mem": "64G",
    "--nodelist": "n[2-3]",
    "--exclude": "n9",
    "--constraint": "fast",
    "--gres": "gpu:1",
    "--reservation": "course",
    "--slurm": "nice=100\nhold",
}
ALL = "--reservation=course --mem=64G --constraint=fast --nice=100 --hold"


def test_all_options_reach_srun() -> None:
    options = SlurmOptions.of_site(
        Site(sections={"slurm": {"gres_resource": "cs:1", "gres_node": "n1"}}), GIVEN
    )
    words = " ".join(srun_job("job", components(JobLayout(3, 2)), options, ["agent"]))
    chief, workers = words.split(" : ")
    assert " --gres=cs:1,gpu:1 --nodelist=n1 --exclude=n9 " in chief
    assert " --gres=gpu:1 --nodelist=n[2-3] --exclude=n9 " in workers
    assert f"{ALL} agent" in chief
    assert f"{ALL} agent" in workers
    alone = " ".join(srun_cpu("me", options, ["run"], exclude_gres=True, terminal=False, cpus=None))
    assert alone.endswith(f" --exclude=n1,n9 --gres=gpu:1 --nodelist=n[2-3] {ALL} run")


def test_a_job_of_one_node_cannot_be_on_two() -> None:
    options = SlurmOptions.of_site(Site(sections={"slurm": {"gres_node": "n1"}}), {"--nodelist": "n2"})
    with pytest.raises(UsageError, match="--nodelist=n2: the only node of the job is n1, which holds the CS"):
        srun_job("job", components(JobLayout(1, 2)), options, ["agent"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("array=1-4", "not passed on: the elements of a job array would share one CS system"),
        ("nodes=3", "not passed on: --total-nodes"),
        ("mem=1G", "expected the flag of that name: write --mem=1G"),
        ("-c 3", "expected a long option"),
    ],
)
def test_options_that_are_the_launchers_are_refused(text: str, said: str) -> None:
    [any_other] = [flag for flag in FLAGS if flag.name == "--slurm"]
    with pytest.raises(ValueError, match=said):
        any_other.check(text)
    assert any_other.check("--comment=a b") == "comment=a b"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("python", "models/fc_mnist/tf/run.py", "--mode=train"), "fc_mnist"),
        (("python", "run.py"), "my_net"),
        (("python-pt", "./train_gpt.py"), "train_gpt"),
        (("python", "-m", "speech.train"), "speech"),
        (("bash", "scripts/sweep.sh"), "sweep"),
        (("hostname",), "hostname"),
    ],
)
def test_a_job_is_named_after_its_program(words: Sequence[str], name: str) -> None:
    assert job_name(words, Path("/home/ada/my_net"), "slurm-20261120-101530-1a2b") == f"{name}-1a2b"


NODES = "".join(
    "\x1f".join(fields) + "\n"
    for fields in (
        ("n1", "8", "1000", "cs:1", "main*", "drained", "power supply"),
        ("n2", "8", "1000", "(null)", "main*", "idle", "none"),
    )
)


def test_a_node_of_the_system_that_is_out_of_use_is_named_with_slurms_reason() -> None:
    nodes = parse_nodes(NODES)
    assert owners_out_of_use(nodes, "cs:1") == "n1 is drained (power supply)"
    assert owners_out_of_use(nodes, "", "n1") == "n1 is drained (power supply)"
    assert owners_out_of_use(nodes, "cs:1", "n2") == ""
    assert owners_out_of_use([*nodes, Node("n3", 8, 1, "cs:1", "main", "idle")], "cs:1") == ""
    assert owners_out_of_use(nodes, "") == ""
