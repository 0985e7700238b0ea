"""Folders for the servers of the original's cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class VolumeMount:
    """A folder that servers of the original's cluster mount; here all tasks see the folders of the program.

    Attributes:
        name: Name of the volume.
        mount_path: Path of the folder.
        sub_path: Folder in the volume.
    """

    name: str
    mount_path: str
    sub_path: str = ""
