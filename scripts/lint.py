"""Lint in addition to ruff, mypy and import-linter: circles of imports, machine paths, spelling."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from configparser import ConfigParser
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent


def find_import_circle(packages: Iterable[str]) -> list[str]:
    """Return the modules of a circle of imports, lazy imports included; empty if there is none."""
    graph = grimp.build_graph(*packages)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def find_machine_paths(paths: Iterable[Path], machine_paths: Iterable[str]) -> list[str]:
    """Return the lines of files that contain a path of this machine, as `FILE:LINE: PATH`."""
    needles = [path for path in machine_paths if path.count("/") > 1 or path == "/root"]
    found = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # pictures
        found += [
            f"{path.relative_to(ROOT)}:{number}: {needle}"
            for number, line in enumerate(lines, 1)
            for needle in needles
            if f"{needle}/" in line
        ]
    return found


def list_files() -> list[Path]:
    """Return the files that Git tracks, or all files of a copy that is no checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        sources = (path for path in ROOT.rglob("*") if path.suffix != ".pyc")
        paths = [path for path in sources if not _GENERATED & set(path.relative_to(ROOT).parts)]
    return [path for path in paths if path.is_file()]


_GENERATED = {".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "demo_out"}


def main() -> int:
    """Print the errors, and return the exit code."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    circle = find_import_circle(setup["importlinter"]["root_packages"].split())
    if circle:
        print("circle of imports:", " -> ".join(circle))
    files = list_files()
    machine_paths = find_machine_paths(files, (str(ROOT), str(Path.home())))
    for line in machine_paths:
        print(f"{line} is a path of this machine")
    names = [str(path.relative_to(ROOT)) for path in files]
    spelling = subprocess.run([sys.executable, "-m", "codespell_lib", *names], cwd=ROOT, check=False)
    return int(bool(circle or machine_paths or spelling.returncode))


if __name__ == "__main__":
    sys.exit(main())
