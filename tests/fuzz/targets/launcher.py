"""What the launcher reads from other programs: commands of Slurm, `cs_system status --json`, variables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from yaml import YAMLError

from cs_system.address import parse_addresses
from cs_system.errors import BadAddressError
from cs_toolkit.errors import UsageError
from csrun.doctor import machine
from csrun.errors import CsrunError
from csrun.schedulers.hostlist import compress_hostlist, expand_hostlist
from csrun.schedulers.slurm import client as slurm
from csrun.schedulers.slurm.allocation import read_allocation
from csrun.schedulers.slurm.place import read_place
from csrun.schedulers.slurm.srun import SrunStarter
from csrun.site import Site
from csrun.system_status import ask_systems, check_system
from csrun.tasks.environment import Toolkit
from csrun.training_runs.page import render_page
from csrun.training_runs.records import ModelDir, TrainingRun, parse_params, parse_runs
from csrun.training_runs.text import render_runs
from tests.fuzz.target import Target

TOOLKIT = Toolkit(Path(sys.executable).parent, None)
COMMAND = ("python", "run.py", "--cs_ip=cs1,cs2")
STATUS = (
    b'{"address": "cs1:9000", "name": "cs1", "version": "1", "state": "RUNNING", "fabric": "cs2", '
    b'"run": {"job": "job", "since": 1e9}, "admission": {"drained_by": ""}}\n'
    b'{"address": "cs2:9000", "name": "cs2", "version": "1", "state": "IDLE", "fabric": "cs2", "run": null, '
    b'"admission": {"drained_by": "root"}}\n'
)
PACKAGES = b'{"python": "3.11", "tensorflow": "2", "torch": null}\n'
HOSTS = (b"n[08-10],m1", b"a[1-2]b[3,5-6]c,d", b"n1,n2,n3")
VARIABLES = (
    b"SLURM_JOB_ID=7\0SLURM_HET_SIZE=2\0SLURM_JOB_NODELIST_HET_GROUP_0=n[1-3]\0SLURM_PROCID=1\0SLURM_NTASKS=3\0"
    b"SLURM_JOB_NODELIST_HET_GROUP_1=m[08-10,12]\0SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0=16(x2),8\0",
    b"SLURM_JOB_ID=7\0SLURM_JOB_NODELIST=n1,n2\0SLURM_STEP_ID=0\0SLURM_PROCID=0\0SLURM_NTASKS=3\0"
    b"SLURM_NODEID=0\0SLURM_STEP_NODELIST=n[1-2]\0SLURM_LAUNCH_NODE_IPADDR=10.0.0.7\0SLURM_RESTART_COUNT=2\0",
)


def answering(output: bytes, use: Callable[[], object]) -> None:
    """Call a function whose commands have this output."""
    text = output.decode("utf-8", "replace")

    def run(*arguments: object, **keywords: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess((), 0, text, text)

    with patch("subprocess.run", run):
        use()


def parse_status(data: bytes) -> None:
    for wait in (False, True):
        with suppress(CsrunError):
            answering(data, lambda wait=wait: check_system(COMMAND, "", TOOLKIT, wait=wait, certain=True))


def status_lines() -> list[bytes]:
    answering(STATUS, lambda: ask_systems("cs1,cs2", TOOLKIT))
    return [STATUS]


def parse_python(data: bytes) -> None:
    answering(data, lambda: machine.python_finding({}, TOOLKIT, Site(), Path("/")))


def parse_slurm(data: bytes) -> None:
    """The first line is one of srun, the others are the answer of a command."""
    text = data.decode("utf-8", "surrogateescape")
    starter = SrunStarter(slurm.SlurmClient({}))
    for line in text.splitlines():
        starter.parse(line)
        starter.is_redundant(line, ending=False)
    slurm.explain("srun", text)
    parsers: Sequence[Callable[[str], object]] = (
        slurm.parse_queue,
        slurm.parse_nodes,
        slurm.parse_cpus_for_jobs,
        slurm.parse_partitions,
        slurm.parse_licences,
    )
    for parse in parsers:
        with suppress(slurm.SlurmError):
            parse(text)


def parse_variables(data: bytes) -> None:
    entries = (entry.partition("=") for entry in data.decode("utf-8", "surrogateescape").split("\0"))
    environment = {name: value for name, _, value in entries}
    with suppress(UsageError):
        read_allocation(environment)
    read_place(environment)


def parse_hosts(data: bytes) -> None:
    names = expand_hostlist(data.decode("utf-8", "surrogateescape"))
    assert expand_hostlist(compress_hostlist(names)) == names or any("[" in name for name in names)


def slurm_seeds() -> list[bytes]:
    separator = slurm._SEPARATOR
    queue = (
        "7+1",
        "PENDING",
        "None",
        "n[1-2]",
        "user",
        "job",
        "gres:cs:1",
        "cs",
        "N/A",
        "1:00",
        "main",
        "10",
    )
    node = ("n1", "4", "1024", "gpu:2(S:0),cs:1", "main*", "idle~", "none")
    partition = ("main*", "up", "1-00:00:00", "3")
    lines = [
        "srun: job 7 queued and waiting for resources",
        "srun: error: n1: task 0: Exited with exit code 7",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-31 DUE TO TIME LIMIT, SEE LOG ***",
    ]
    records = [
        *(separator.join(fields) for fields in (queue, node, partition)),
        "NodeName=n1 CPUTot=4 CPUEfctv=3 State=IDLE",
        "LicenseName=cs Total=1 Used=0 Free=1",
    ]
    return [text.encode() for text in (*lines, *records)]


RUNS = (
    b'{"mode": "train", "status": "completed", "started_at_unix_s": 1.5e9, "first_step": 0, "last_step": 10, '
    b'"loss": 1.5, "samples_per_sec": 640.25, "performance": {"total_time": 0.5}, "command": ["run.py"]}\n'
) * 2
PARAMS = b"optimizer: {lr: 0.1, name: sgd}\nsizes: &sizes [1, 2e3, .inf, 0xff]\nothers: *sizes\n"


def show_runs(runs: list[TrainingRun], params: dict[str, object]) -> None:
    """Show runs next to none in all forms."""
    dirs = [ModelDir(Path("a"), runs, params), ModelDir(Path("b"))]
    render_runs(dirs)
    render_page(dirs)
    json.dumps([one.to_json() for one in dirs], allow_nan=False)


def parse_training_runs(data: bytes) -> None:
    show_runs(parse_runs(data, Path("runs.jsonl"), []), {})


def parse_parameters(data: bytes) -> None:
    show_runs([], parse_params(data))


TARGETS = [
    Target("launcher.runs", parse_training_runs, (), lambda: [RUNS]),
    Target("launcher.params", parse_parameters, (YAMLError, ValueError, RecursionError), lambda: [PARAMS]),
    Target("launcher.status", parse_status, (), status_lines),
    Target("launcher.python", parse_python, (), lambda: [PACKAGES]),
    Target("launcher.slurm", parse_slurm, (), slurm_seeds),
    Target("launcher.variables", parse_variables, (CsrunError,), lambda: list(VARIABLES)),
    Target("launcher.hosts", parse_hosts, (UsageError,), lambda: list(HOSTS)),
    Target(
        "launcher.addresses",
        lambda data: parse_addresses(data.decode("utf-8", "replace")),
        (BadAddressError,),
        lambda: [b"10.0.0.7:9000,[::1]:9001", b"cs1.lab.example:9000:9000"],
    ),
]
