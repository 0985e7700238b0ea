"""The rule that decides where a program runs, the same for all front ends.

A program that asks for this CPU runs there. Otherwise it runs on the CS system whose address it gives, or
that the environment or the site names, and without an address on an embedded simulated one. A compile for
which no address is known needs no system.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from cs_runtime.errors import NoSystemError
from cs_runtime.options import ORIGINAL_ADDRESS, Command
from csrun.site.loading import load_site
from csrun.tasks.environment import SYSTEM_VARIABLE
from csrun.wrappers import PYTHON_VARIABLE

Kind = Literal["system", "embedded", "cpu", "none"]

_ACTIVITIES: Mapping[str, str] = {
    "run": "running",
    "train": "training",
    "eval": "evaluating",
    "predict": "predicting",
    "compile_only": "compiling",
    "validate_only": "validating",
}
_NO_ADDRESS = "no address: pass --cs_ip or set cs_ip of the site"


@dataclass(frozen=True, slots=True)
class Address:
    """An address of a CS system that a program or its surroundings give.

    Attributes:
        value: The address, or several separated by commas.
        source: The flag, argument, variable or file that sets it.
    """

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a run happens, and why.

    Attributes:
        kind: A CS system with an address, an embedded one, this CPU, or none for a compile without an
            address.
        reason: The setting that decided it.
        address: The address of the CS system; None for the other kinds.
    """

    kind: Kind
    reason: str
    address: str | None = None

    @property
    def on_cpu(self) -> bool:
        """True if the run is on this CPU."""
        return self.kind == "cpu"

    def describe(
        self, command: Command | Literal["run"], system_name: str | None = None, fabric: str = "cs2"
    ) -> str:
        """Return the line that states what runs where and why."""
        activity = _ACTIVITIES[command]
        if self.kind == "none":
            return f"{activity} for a CS system with the fabric {fabric} ({self.reason})"
        name = f" {system_name}" if system_name else ""
        place = {
            "system": f"the CS system{name} at {self.address}",
            "embedded": "an embedded simulated CS system",
            "cpu": "this CPU",
        }[self.kind]
        preposition = "for" if command in ("compile_only", "validate_only") else "on"
        return f"{activity} {preposition} {place} ({self.reason})"


def choose_destination(
    given: Address | None,
    surrounding: Address | None,
    cpu_reason: str = "",
    *,
    compiles: bool = False,
    num_tasks: int = 1,
) -> Destination:
    """Return where a program runs.

    Args:
        given: The address that the program gives, by a flag or in its configuration.
        surrounding: The address of the environment or the site, used if the program gives none.
        cpu_reason: How the program asks for this CPU; empty if it does not.
        compiles: The program is only compiled or validated.
        num_tasks: Tasks of the job that read the input themselves, and so must all reach the system.

    Raises:
        NoSystemError: Several tasks need a system, and no address is known.
    """
    # Asking for this CPU precedes an address: a program that debugs a step must not occupy the system that
    # the site names for every program.
    if cpu_reason and not compiles:
        return Destination("cpu", cpu_reason)
    address = given or surrounding
    if address is not None:
        return Destination("system", address.source, address.value)
    if compiles:
        return Destination("none", "no address")
    if num_tasks > 1:
        raise NoSystemError(num_tasks)
    return Destination("embedded", _NO_ADDRESS)


def given_address(value: str | None, name: str) -> Address | None:
    """Return the address that a program gives; None without one, or for the original's default.

    Args:
        value: The address.
        name: The argument of the program's call that has it, named if no flag of the command line does.
    """
    if not value or value == ORIGINAL_ADDRESS:
        return None
    return Address(value, _flag_with(value, sys.argv) or name)


def _flag_with(value: str, arguments: Sequence[str]) -> str | None:
    """Return the flag of a command line that has a value."""
    for before, word in pairwise(arguments):
        flag, _, inline = word.partition("=")
        if flag.startswith("-") and inline == value:
            return flag
        if before.startswith("-") and word == value:
            return before
    return None


def surrounding_address() -> Address | None:
    """Return the address that the environment or the site file names; None without one.

    Raises:
        csrun.site.SiteError: The settings of the site are invalid.
    """
    if value := os.environ.get(SYSTEM_VARIABLE):
        return Address(value, SYSTEM_VARIABLE)
    if PYTHON_VARIABLE in os.environ or "CSRUN_RANK" in os.environ:
        return None  # the launcher has read the site file, and sets the variable to its address
    loaded = load_site(os.environ)
    if not loaded.site.system_addresses:
        return None
    name = "cs_ip" if loaded.site.cs_ip else "systems"
    return Address(loaded.site.system_addresses, f"{name} of the site, {loaded.origins[name]}")
