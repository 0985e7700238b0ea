"""The toolkit's YAML: where its files lie, and the strict loader.

The files themselves are in `configs/` at the top of a checkout. That folder is no package: programs tend to
have a folder `configs` of their own beside their `run.py`, which would stand in its way.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent / "configs"
_INSTALLED = Path(sysconfig.get_path("data")) / "share" / "cs-toolkit" / "configs"


def config_file(name: str) -> Path:
    """Path of a YAML file that comes with the toolkit, in a checkout or where pip has put it."""
    checkout = _CHECKOUT / name
    return checkout if checkout.exists() else _INSTALLED / name
