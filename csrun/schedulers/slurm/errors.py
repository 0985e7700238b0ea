"""What Slurm's commands complain about, in words that say what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from csrun.errors import CsrunError


class SlurmError(CsrunError):
    """Slurm refused a request, or one of its commands failed."""

    exit_code = 1


class SlurmUnavailableError(SlurmError):
    """Slurm cannot be asked: no commands, no controller, no authentication."""


class SlurmRequestError(SlurmError):
    """What was asked for does not exist here or does not fit this cluster."""

    exit_code = 2


class NoSuchJobError(SlurmError):
    """Slurm knows no job of this id (any more)."""


_UNAVAILABLE: Mapping[str, str] = {
    r"[Mm]unge|authentication error|auth_g_": (
        "Slurm's authentication does not work on this machine; expected a running munged with the "
        "cluster's key: ask the administrator to start it (systemctl start munge)"
    ),
    r"Unable to contact slurm controller|slurm_persist_conn|Connection refused": (
        "the Slurm controller does not answer; expected a running slurmctld: look at 'scontrol ping', and"
        " at the file that SLURM_CONF names"
    ),
    r"cannot stat file|Could not establish a configuration source|s_p_parse_file": (
        "Slurm finds no configuration; expected slurm.conf in /etc/slurm or the file that SLURM_CONF "
        "names: correct SLURM_CONF"
    ),
}
_REQUEST: Mapping[str, str] = {
    r"[Ii]nvalid partition": (
        "there is no such partition; expected one that 'sinfo' lists: correct --partition or 'partition' "
        "of the site configuration"
    ),
    r"Invalid generic resource|Invalid GRES|TRES gres": (
        "the cluster has no such generic resource; expected one that 'sinfo -o %G' lists: correct "
        "'gres_resource' of the site configuration"
    ),
    r"Invalid license": (
        "the cluster has no such licence, or not that many; expected one that 'scontrol show lic' lists: "
        "correct 'licence' of the site configuration"
    ),
    r"Invalid account|Invalid qos|[Ii]nvalid account or account/partition": (
        "the account or QOS is not valid for you; expected one that 'sacctmgr show associations "
        "user=$USER' lists: correct --account or --qos"
    ),
    r"Invalid --time|Invalid time limit|Requested time limit": (
        "the time limit cannot be used; expected MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS within the "
        "partition's limit ('sinfo -o %P,%l'): correct --time"
    ),
    r"dependency": (
        "the dependency cannot be used; expected TYPE:JOBID such as afterok:1234 with a job that exists: "
        "correct --dependency"
    ),
    r"Invalid node name": (
        "there is no such node; expected one that 'sinfo -N' lists: correct 'gres_node' of the site "
        "configuration or your --nodelist"
    ),
    (
        r"CPU count per node can not be satisfied|Requested node configuration is not available|"
        r"Node count specification invalid|More processors requested|Memory specification"
    ): (
        "no nodes of this cluster can ever give that; expected nodes, tasks, CPUs and resources that "
        "'sinfo -N -o %N,%c,%m,%G' shows: ask for less"
    ),
}
_NO_JOB = r"Invalid job id"


def explain(command: str, complaint: str) -> SlurmError:
    """The error for what `command` (srun, sbatch, squeue ...) wrote to stderr; Slurm's own words are kept."""
    own_words = shortened_complaint(complaint)
    for pattern, text in _UNAVAILABLE.items():
        if re.search(pattern, complaint):
            return SlurmUnavailableError(f"{text} ({command} says: {own_words})")
    if re.search(_NO_JOB, complaint):
        return NoSuchJobError(
            f"Slurm knows no such job; expected the id of a job that waits, runs or has ended within the "
            f"last minutes: look at 'squeue' ({command} says: {own_words})"
        )
    for pattern, text in _REQUEST.items():
        if re.search(pattern, complaint):
            return SlurmRequestError(f"{text} ({command} says: {own_words})")
    return SlurmError(
        f"{command} failed: {own_words or 'without a word'}; expected no complaint of Slurm here: correct "
        f"the request, or ask the administrator of the cluster"
    )


def shortened_complaint(complaint: str) -> str:
    """The last two lines of a complaint, without the command's name in front: they hold the reason."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    return "; ".join(re.sub(r"^(s\w+|scontrol): (error: |fatal: )?", "", line) for line in lines[-2:])
