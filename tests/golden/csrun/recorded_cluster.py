"""A cluster that always answers the same: Slurm's commands as scripts that print the output of a real one.

Three nodes of eight CPUs, the first of which owns cs:1; job 12 waits, job 11 holds the system. All output is
in the formats that `csrun.schedulers.slurm.client` asks for.
"""

from __future__ import annotations

from pathlib import Path

_QUEUE = """\
12|PENDING|Resources||ada|slurm-20261120-101600-2b3c|cs:1|(null)|2026-11-20T11:00:00|UNLIMITED|all|10|2
11|RUNNING|None|cs-node[1-2]|ada|slurm-20261120-101530-1a2b|gres:cs:1|(null)|2026-11-20T10:15:31|3:30|all|9|2
10|TIMEOUT|TimeLimit|cs-node3|ada|slurm-20261120-101500-0a1b|N/A|(null)|2026-11-20T10:15:00|0:00|all|8|1
"""
_PARTITIONS = "all*|up|1-00:00:00|3\nshort|up|5:00|3\n"
_NODES = """\
cs-node1|8|2000|cs:1|all*|mixed|none
cs-node2|8|2000|(null)|all*|mixed|none
cs-node3|8|2000|(null)|all*|idle|none
"""
_CONFIGURATION = """\
Configuration data as of 2026-11-20T10:16:00
ClusterName             = csfix
SLURM_VERSION           = 22.05.8
SlurmctldHost[0]        = localhost(127.0.0.1)
SrunPortRange           = 0-0
"""
_LICENCES = "LicenseName=cs Total=1 Used=1 Free=0 Reserved=0 Remote=no\n"
_CPUS = "".join(f"NodeName=cs-node{number} CPUAlloc=0 CPUEfctv=8 CPUTot=8\n" for number in (1, 2, 3))

_SCRIPTS = {
    "squeue": f"cat <<'END'\n{_QUEUE}END",
    "sinfo": f"case $* in (*--Node*) cat <<'END'\n{_NODES}END\n;; (*) cat <<'END'\n{_PARTITIONS}END\n;; esac",
    "scontrol": (
        f"case $* in (*config*) cat <<'END'\n{_CONFIGURATION}END\n;; (*lic*) cat <<'END'\n{_LICENCES}END\n;; "
        f"(*) cat <<'END'\n{_CPUS}END\n;; esac"
    ),
    "srun": "echo 'srun: error: Unable to allocate resources: Requested nodes are busy' >&2; exit 1",
    "sacct": "exit 1",
    "sbatch": "exit 1",
    "scancel": "exit 1",
}


def write_commands(folder: Path) -> None:
    """Puts the commands into a folder for PATH."""
    folder.mkdir()
    for name, body in _SCRIPTS.items():
        path = folder / name
        path.write_text("#!/bin/sh\n" + body.replace("|", "\x1f") + "\n")
        path.chmod(0o755)
