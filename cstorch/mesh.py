"""The original's mesh of devices: one CS system runs the whole step here."""

from __future__ import annotations

from cstorch.core.annotation import device_annotation

__all__ = ["device_annotation"]
