"""Asks a CS system how it fares, in a process of its own: a launcher imports nothing of its client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from csrun.errors import CsrunError
from csrun.tasks.environment import Toolkit

ANSWER_LIMIT_S = 20.0
_PREFIX = "cs_system: error: "


class SystemQueryError(CsrunError):
    """The system does not answer, or something else is at its address.

    Attributes:
        exit_code: 2 for what is no address.
        asked: the system's client has said so; else it could not be run, and nothing is known of the system.
    """

    def __init__(self, text: str, exit_code: int = 1, *, asked: bool = True) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.asked = asked


def ask_system(address: str, toolkit: Toolkit) -> Mapping[str, Any]:
    """What `cs_system status --json` says of the system at an address.

    Raises:
        SystemQueryError: it is no address, nothing answers there, or something else does.
    """
    words = [str(toolkit.python), "-m", "cs_system", "status", "--json", f"--cs_ip={address}"]
    # -m searches in the current directory first, so it has to be one that is ours.
    cwd = toolkit.import_root or toolkit.bin_dir
    try:
        done = subprocess.run(
            words, cwd=cwd, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemQueryError(f"the CS system at {address} was not asked: {error}", asked=False) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        if not said.startswith(_PREFIX):
            raise SystemQueryError(f"the CS system at {address} was not asked: {said}", asked=False)
        raise SystemQueryError(said.removeprefix(_PREFIX), done.returncode)
    answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[0])
    return answer
