"""Flags that pass through to srun and sbatch under the same names, and one for all others."""

from __future__ import annotations

import re

from csrun.schedulers.base import Flag
from csrun.site.values import check_argument, check_time_limit

ANY = "--slurm"

_NAME = re.compile(r"[a-z][a-z-]*")
_OURS = {
    "array": "the elements of a job array would share one CS system, one id and one log directory. Submit "
    "a script of your own with 'sbatch --array=...' that calls csrun_wse: each element is a job then",
    **dict.fromkeys(
        ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "distribution", "exclusive"),
        "--total-nodes, --tasks-per-node, --cpus-per-task and --cyclic decide it",
    ),
    **dict.fromkeys(
        ("output", "error", "input", "open-mode", "chdir"), "the launcher writes the logs: see --log-dir"
    ),
    **dict.fromkeys(("signal", "requeue", "no-requeue"), "--requeue and --warn-before decide it"),
    **dict.fromkeys(
        ("pty", "wait", "kill-on-bad-exit", "mpi", "overlap", "jobid", "het-group", "multi-prog"),
        "the launcher starts and ends the tasks",
    ),
}
"""Options that would change what a job of the launcher's is; what to do instead."""
_FLAGS = (
    *("time", "partition", "account", "qos", "dependency", "job-name", "mem", "nodelist", "exclude"),
    *("constraint", "gres", "reservation"),
)


def _value(text: str) -> str:
    return check_argument(text) if text else text


def _option(text: str) -> str:
    """One option of Slurm's without its dashes: OPTION=VALUE, or OPTION alone."""
    name, _, value = text.removeprefix("--").partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError("expected a long option of srun and sbatch, for example comment=mine or nice=100")
    if name in _OURS:
        raise ValueError(f"which is not passed on: {_OURS[name]}")
    if name in _FLAGS:
        raise ValueError(f"expected the flag of that name: write --{name}={value or 'VALUE'}")
    return _value(text.removeprefix("--"))


def _array(text: str) -> str:
    if text:
        raise ValueError(f"which is refused: {_OURS['array']}")
    return text


FLAGS = (
    Flag("--time", "LIMIT", "Time limit of a Slurm job: minutes, H:M:S or D-H:M.", check_time_limit),
    Flag("--partition", "NAME", "Slurm partition.", _value),
    Flag("--account", "NAME", "Slurm account.", _value),
    Flag("--qos", "NAME", "Slurm quality of service.", _value),
    Flag("--reservation", "NAME", "Slurm reservation.", _value),
    Flag("--dependency", "TYPE:JOB", "Start after other Slurm jobs, for example afterok:1234.", _value),
    Flag("--job-name", "NAME", "Name in Slurm's queue. Default: what the program is about.", _value),
    Flag("--mem", "SIZE", "Memory of each node, for example 64G; 0 is all of it.", _value),
    Flag("--nodelist", "NODES", "Nodes that the job must have.", _value),
    Flag("--exclude", "NODES", "Nodes that the job must not have.", _value),
    Flag("--constraint", "FEATURES", "Features that its nodes must have.", _value),
    Flag("--gres", "NAME:COUNT", "Generic resources of each node, beside the CS system's.", _value),
    Flag(
        ANY,
        "OPTION=VALUE",
        "Any other option of srun and sbatch, for example --slurm=nice=100; may be repeated.",
        _option,
        repeated=True,
    ),
    Flag("--array", "INDEXES", "Refused: an element would not be a job of its own.", _array, hidden=True),
)
