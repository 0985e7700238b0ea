"""The example programs that come with the toolkit, and copying one of them with all that it imports.

A copy has the paths of a checkout (`models/fc_mnist/tf/run.py`), so that the commands of the documents hold.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_toolkit.files import replace_file
from csrun.errors import CsrunError

FOLDER = "models"
SHARED = "common"
FRAMEWORKS: Mapping[str, str] = {"tf": "tf", "torch": "pytorch"}
"""Folder of an example's programs, by framework."""

_PATTERNS = ("*.py", "{}/*.py", "{}/configs/*.yaml")
_SHOWN = 5


class FilesInTheWayError(CsrunError):
    """Files that a copy would replace, and that are not as the toolkit has them."""


@dataclass(frozen=True, slots=True)
class Program:
    """An example for one framework; paths are those of a checkout.

    Attributes:
        example: name of the example, for instance "fc_mnist".
        framework: a key of `FRAMEWORKS`.
        description: the first line of its `model.py`.
        run: the program, for instance `models/fc_mnist/tf/run.py`.
        params: parameter files, the one to begin with first.
    """

    example: str
    framework: str
    description: str
    run: Path
    params: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "example": self.example,
            "framework": self.framework,
            "description": self.description,
            "run": str(self.run),
            "params": [str(path) for path in self.params],
        }


def source_folder() -> Path:
    """Where the examples lie: inside this package where it is installed, beside it in a checkout."""
    packaged = Path(__file__).resolve().parent / "examples"
    return packaged if packaged.is_dir() else packaged.parents[1] / FOLDER


def programs(source: Path) -> list[Program]:
    """All examples below a folder, by name and framework."""
    found = sorted({path.parents[1].name for path in source.glob("*/*/run.py")})
    return [
        _program(source, example, framework)
        for example in found
        for framework, folder in FRAMEWORKS.items()
        if (source / example / folder / "run.py").is_file()
    ]


def files_of(source: Path, program: Program) -> list[Path]:
    """What a program needs, below `source`: its own files, its parameter files, and what all share.

    Nothing that a run has left beside them.
    """
    patterns = [pattern.format(FRAMEWORKS[program.framework]) for pattern in _PATTERNS]
    return [
        path.relative_to(source)
        for folder in (program.example, SHARED)
        for pattern in patterns
        for path in sorted((source / folder).glob(pattern))
    ]


def copy(source: Path, program: Program, directory: Path, *, force: bool) -> list[Path]:
    """Copies a program into `directory`, which is made; files that are there as they should be stay.

    Args:
        source: folder of the examples.
        program: which one.
        directory: gets the folder `models`.
        force: replace files that differ.

    Returns:
        The files that were written, seen from `directory`.

    Raises:
        FilesInTheWayError: some exist and differ; nothing was written.
        CsrunError: a file cannot be read or written.
    """
    try:
        wanted = {Path(FOLDER, path): (source / path).read_bytes() for path in files_of(source, program)}
        missing = {path: data for path, data in wanted.items() if not _has(directory / path, data)}
        taken = [path for path in missing if (directory / path).exists()]
        if taken and not force:
            raise FilesInTheWayError(_in_the_way(directory, taken))
        for path, data in missing.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            replace_file(directory / path, data)
    except OSError as error:
        raise CsrunError(
            f"cannot write {error.filename}: {error.strerror}; expected a directory that can be written: "
            "name another one behind the example"
        ) from error
    return list(missing)


def _program(source: Path, example: str, framework: str) -> Program:
    folder = source / example / FRAMEWORKS[framework]
    params = sorted(folder.glob("configs/*.yaml"), key=lambda path: (not _is_first(path), path.name))
    return Program(
        example,
        framework,
        _first_line(folder / "model.py"),
        Path(FOLDER, folder.relative_to(source), "run.py"),
        tuple(Path(FOLDER, path.relative_to(source)) for path in params),
    )


def _is_first(path: Path) -> bool:
    return path.stem.endswith("_tiny")


def _first_line(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _has(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _in_the_way(directory: Path, taken: list[Path]) -> str:
    names = ", ".join(str(path) for path in taken[:_SHOWN])
    more = f" and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
    return (
        f"{directory} has {names}{more} already, with other contents; nothing was written: name another "
        "directory behind the example, or replace them with --force"
    )
