"""Foundation of the toolkit, which imports nothing of it; here, its version and its configuration files.

The files are in `configs/` at the top of a checkout. That folder is not a package: a folder `configs` next to
a program's `run.py` would hide it.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

__version__ = "0.2.0"

# The newest original release with this PyTorch interface; programs choose formats by it.
ORIGINAL_RELEASE = "2.10.0"

_CHECKOUT = Path(__file__).resolve().parent.parent / "configs"
_INSTALLED = Path(sysconfig.get_path("data")) / "share" / "cs-toolkit" / "configs"


def config_file(name: str) -> Path:
    """Return the path of a YAML file of the toolkit, in a checkout or an installation."""
    checkout = _CHECKOUT / name
    return checkout if checkout.exists() else _INSTALLED / name
