"""Versions that client and server compare when they meet."""

from __future__ import annotations

import csrun.version

TOOLKIT_VERSION: str = csrun.version.__version__

# Raised by every change of the control plane that the other side cannot ignore.
PROTOCOL_VERSION = 3
