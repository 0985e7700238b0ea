"""A folder from which pip installs the packages of this environment, without a network.

Each wheel in it has the name, the version, the needs and the entry points of a package of this environment,
and a link to its files. So pip resolves what a user's pip resolves, and nothing is downloaded or copied.
"""

from __future__ import annotations

import re
import sysconfig
from importlib.metadata import Distribution, distributions
from pathlib import Path
from zipfile import ZipFile

OURS = "cs-toolkit"
WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_packages(folder: Path) -> None:
    """Makes a wheel for every package but the toolkit itself."""
    folder.mkdir()
    for found in distributions(path=[sysconfig.get_path("purelib")]):
        if found.metadata["Name"] != OURS:
            _make_wheel(folder, found)


def _make_wheel(folder: Path, found: Distribution) -> None:
    name = re.sub(r"[-_.]+", "_", found.metadata["Name"]).lower()
    start = f"{name}-{found.version}"
    files = {
        f"{start}.dist-info/METADATA": found.read_text("METADATA") or "",
        f"{start}.dist-info/WHEEL": WHEEL,
        f"{start}.dist-info/entry_points.txt": found.read_text("entry_points.txt") or "",
        "packages_of_the_tests.pth": sysconfig.get_path("purelib") + "\n",
    }
    record = f"{start}.dist-info/RECORD"
    with ZipFile(folder / f"{start}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(record, "".join(f"{path},,\n" for path in (*files, record)))
