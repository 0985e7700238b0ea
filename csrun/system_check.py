"""Looks at the CS system of a job before anything of the job is started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from csrun.errors import CsrunError
from csrun.system_query import SystemQueryError, ask_system
from csrun.system_watch import named_system
from csrun.tasks.environment import Toolkit

_COMPILES = ("compile_only", "validate_only")


def check_system(
    command: Sequence[str],
    site_address: str,
    toolkit: Toolkit,
    *,
    wait: bool,
    certain: bool,
    variable: str = "",
) -> str | None:
    """Whether the system that a command will use answers and is free.

    Args:
        command: the user's words.
        site_address: of the site's system, for a command that names none; "" for none.
        toolkit: whose client asks.
        wait: the job queues for a busy system.
        certain: what is seen from this machine is what the job will see, now.
        variable: what the user's `CS_IP` says; it names the system of a command that does not.

    Returns:
        What the user should know; None for nothing.

    Raises:
        CsrunError: the job cannot train: a wrong address, something else at the address, a busy system.
    """
    of_command = named_system(command)
    named = variable if of_command is None else of_command
    address = named or ("" if of_command is not None else site_address)
    if not address:
        return None
    try:
        status = ask_system(address, toolkit)
    except SystemQueryError as error:
        if not error.asked:
            return str(error)
        if error.exit_code == 2 and named:
            raise
        if named and certain:
            raise
        seen_from = "" if certain else ", seen from this machine"
        return f"{error}{seen_from}"
    run: Mapping[str, Any] | None = status.get("run")
    if run is None or only_compiles(command) or not certain:
        return None
    held = f"the CS system at {address} is busy: held by {run['job']} since {_clock(run['since'])}"
    if wait:
        return f"{held}; the job waits for it before its first step"
    if named:
        raise CsrunError(
            f"{held}; expected a free one: try again later, or queue for it with csrun_wse --wait"
        )
    return held


def only_compiles(command: Sequence[str]) -> bool:
    """Whether a command says that its program compiles or validates and does no more."""
    words = [word.lstrip("-") for word in command]
    modes = {f"{flag}={mode}" for flag in ("mode", "m") for mode in _COMPILES}
    return any(word in modes or word in _COMPILES for word in words)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
