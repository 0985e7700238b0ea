"""A small container image of files of this machine: a shell, some tools, a Python without packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

INSTALL = "charliecloud is missing; on Debian: apt-get install charliecloud"
TOOLS = ("sh", "env", "ls", "cat", "sleep", "true", "mkdir")
EMPTY = ("dev", "proc", "sys", "tmp", "home", "mnt", "etc", "ch", "data")
NOT_NEEDED = shutil.ignore_patterns(
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "ensurepip",
    "tkinter",
    "config-*",
    "*.a",
)


def make_image(folder: Path) -> Path:
    """Makes the image in a folder and returns it; some 60 MB, within a second or two."""
    for name in EMPTY:
        (folder / name).mkdir(parents=True)
    for name in ("passwd", "group"):  # ch-run binds its own onto them
        (folder / "etc" / name).touch()
    (folder / "etc" / "image-of-the-tests").touch()
    programs = [Path(shutil.which(tool) or tool) for tool in TOOLS]
    for program in programs:
        _copy(program, folder / "bin" / program.name)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = Path(sys.base_prefix)
    python = Path(sys.executable).resolve()
    prefix = folder / "usr" / "local"
    _copy(python, prefix / "bin" / version)
    for alias in ("python", "python3"):
        (prefix / "bin" / alias).symlink_to(version)
    shutil.copytree(base / "lib" / version, prefix / "lib" / version, symlinks=True, ignore=NOT_NEEDED)
    for program in [*programs, python, *prefix.glob("lib/python*/lib-dynload/*.so")]:
        for library in _libraries(program):
            _copy(library, folder / str(library).lstrip("/"))
    (folder / "ch" / "environment").write_text("OF_THE_IMAGE=yes\n")
    return folder


def _libraries(program: Path) -> list[Path]:
    """The shared libraries that a program loads, where its loader finds them."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    words = [word for line in listed.splitlines() for word in line.split()]
    return [Path(word) for word in words if word.startswith("/") and ".so" in word]


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.resolve(), target)


def make_frame(folder: Path, directories: Iterable[str]) -> Path:
    """Makes an image of empty directories, onto which those of this machine are bound, and returns it."""
    for name in (*EMPTY, *(directory.lstrip("/") for directory in directories)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group"):
        (folder / "etc" / name).touch()
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    return folder
