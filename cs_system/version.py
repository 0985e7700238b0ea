"""Versions that client and server compare when they meet."""

from __future__ import annotations

from cs_toolkit.version import __version__

TOOLKIT_VERSION: str = __version__

# Raised by every change of the control plane that the other side cannot ignore.
PROTOCOL_VERSION = 7
