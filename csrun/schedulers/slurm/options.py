"""What a job asks of Slurm besides nodes and tasks: from the site, and from flags of the same names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from csrun.schedulers.slurm.flags import ANY
from csrun.site.model import Site


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Options of srun and sbatch; empty strings are left to Slurm.

    Attributes:
        time_limit, partition, account, qos, dependency: as --time and so on take them.
        reservation, mem, constraint, nodelist, exclude: likewise.
        job_name: of the job; empty: `csrun.schedulers.slurm.names.job_name`.
        own_gres: generic resources of every node, beside the CS system's.
        gres: Slurm's name of the CS system such as "cs:1".
        gres_node: the node that owns it.
        licence: the licence that stands for it where it is no gres, such as "cs:1".
        extra: further words for srun and sbatch.
    """

    time_limit: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    dependency: str = ""
    reservation: str = ""
    mem: str = ""
    constraint: str = ""
    nodelist: str = ""
    exclude: str = ""
    job_name: str = ""
    own_gres: str = ""
    gres: str = ""
    gres_node: str = ""
    licence: str = ""
    extra: tuple[str, ...] = ()

    @classmethod
    def of_site(cls, site: Site, flags: Mapping[str, str] | None = None) -> SlurmOptions:
        """The site's options; flags beat them.

        Args:
            site: its settings.
            flags: by name, as `csrun.schedulers.slurm.flags` has them.
        """
        given = flags or {}
        return cls(
            time_limit=given.get("--time") or site.time_limit,
            partition=given.get("--partition") or site.partition,
            account=given.get("--account") or site.account,
            qos=given.get("--qos") or site.qos,
            dependency=given.get("--dependency", ""),
            reservation=given.get("--reservation", ""),
            mem=given.get("--mem", ""),
            constraint=given.get("--constraint", ""),
            nodelist=given.get("--nodelist", ""),
            exclude=given.get("--exclude", ""),
            job_name=given.get("--job-name", ""),
            own_gres=given.get("--gres", ""),
            gres=site.gres_resource,
            gres_node=site.gres_node,
            licence=site.licence,
            extra=(*site.slurm_options, *_further(given.get(ANY, ""))),
        )

    def gres_words(self, *, with_system: bool) -> list[str]:
        """The generic resources of a node, with the CS system's or without."""
        wanted = [self.gres] if with_system and self.gres else []
        wanted += [self.own_gres] if self.own_gres else []
        return [f"--gres={','.join(wanted)}"] if wanted else []

    def exclude_words(self, *more: str) -> list[str]:
        """The nodes that are left out."""
        names = [name for name in (*more, self.exclude) if name]
        return [f"--exclude={','.join(names)}"] if names else []

    @property
    def resource(self) -> str:
        """What stands for the CS system in the queue, such as "cs:1"; "" for nothing."""
        return self.gres or self.licence

    @property
    def words(self) -> tuple[str, ...]:
        """The words that every component, and every other job of this site, gets."""
        named = {
            "--partition": self.partition,
            "--account": self.account,
            "--qos": self.qos,
            "--time": self.time_limit,
            "--dependency": self.dependency,
            "--reservation": self.reservation,
            "--mem": self.mem,
            "--constraint": self.constraint,
        }
        return (*(f"{flag}={text}" for flag, text in named.items() if text), *self.extra)


def _further(lines: str) -> list[str]:
    """The words for values of --slurm, one in a line."""
    return [f"--{line}" for line in lines.splitlines()]
