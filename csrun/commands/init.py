"""csrun init: copies an example program with its parameter files and all that it imports."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import click
from click.shell_completion import CompletionItem

from cs_toolkit.errors import UsageError
from cs_toolkit.files import replace_file
from csrun.console import STDOUT, say, write_text
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
    packaged = Path(__file__).resolve().parents[1] / "examples"
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


PROGRAM = "csrun"
_PACKAGES = {"tf": ("tensorflow", "TensorFlow"), "torch": ("torch", "PyTorch")}


def names(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The examples."""
    found = {program.example: program.description for program in programs(source_folder())}
    return [CompletionItem(name, help=text) for name, text in found.items() if name.startswith(incomplete)]


@click.command("init", options_metavar="[FLAGS]")
@click.argument("example", required=False, shell_complete=names)
@click.argument("directory", required=False, default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    help="Of the program. Default: the one that is installed, tf where both are.",
)
@click.option("--list", "only_list", is_flag=True, help="List the examples, as without EXAMPLE.")
@click.option("--force", is_flag=True, help="Replace files that exist with other contents.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def init(
    example: str | None, directory: Path, framework: str | None, only_list: bool, force: bool, as_json: bool
) -> int:
    """Copies an example program, its parameter files and what they import into DIRECTORY (default: here).

    Without EXAMPLE it lists the examples. The copy is yours to change. Its paths are those of the documents,
    for instance models/fc_mnist/tf/run.py.

    \b
    Examples:
      csrun init
      csrun init fc_mnist
      csrun init gpt2 my_project --framework=torch
    """
    source = source_folder()
    known = programs(source)
    if not known:
        raise CsrunError(
            f"there are no examples in {source}; expected those that come with the toolkit: install it again"
        )
    if example is None or only_list:
        listed = [program for program in known if framework in (None, program.framework)]
        write_text(STDOUT, _json([one.to_json() for one in listed]) if as_json else list_text(listed))
        return 0
    program = choose(known, example, framework)
    written = copy(source, program, directory, force=force)
    result = {**program.to_json(), "directory": str(directory.resolve()), "written": list(map(str, written))}
    write_text(STDOUT, _json(result) if as_json else copied_text(program, directory, len(written)))
    if not _is_installed(program.framework):
        say(PROGRAM, missing_text(program.framework))
    return 0


def choose(known: Sequence[Program], example: str, framework: str | None) -> Program:
    """The program that is meant.

    Raises:
        UsageError: there is no such example, or none for the framework.
    """
    name = example.replace("-", "_").lower()
    found = {program.framework: program for program in known if program.example == name}
    if not found:
        raise UsageError(_unknown(example, sorted({program.example for program in known})))
    if framework is None:
        framework = next((one for one in found if _is_installed(one)), next(iter(found)))
    if framework not in found:
        others = ", ".join(program.example for program in known if program.framework == framework)
        raise UsageError(
            f"the example '{name}' is there for --framework={', '.join(found)} only; "
            f"for {framework} there are: {others}"
        )
    return found[framework]


def list_text(known: Sequence[Program]) -> str:
    """A line for each example; pure."""
    frameworks: dict[str, list[str]] = {}
    for program in known:
        frameworks.setdefault(program.example, []).append(program.framework)
    texts = {program.example: program.description for program in reversed(known)}
    lines = [f"{name:<12}  {', '.join(frameworks[name]):<9}  {texts[name]}" for name in frameworks]
    return "\n".join([*lines, "", "csrun init EXAMPLE [DIRECTORY] copies one\n"])


def copied_text(program: Program, directory: Path, num_written: int) -> str:
    """What was copied, and what to do with it; pure."""
    framework = _PACKAGES[program.framework][1]
    count = f"{num_written} file{'s' if num_written > 1 else ''}"
    done = f"{count} written" if num_written else "all files are there already"
    lines = [f"{program.example} for {framework} in {directory / program.run.parent}: {done}", ""]
    if directory != Path():
        lines.append(f"  cd {quote(str(directory))}")
    words = f"python {program.run}"
    if program.framework == "torch":  # whose programs have no default, as those of the original have none
        words += f" -p {program.params[0]}"
    lines += [
        f"  csrun_cpu {words} --mode=train --validate_only",
        "  cs_system serve &",
        "  csrun_wse --total-nodes=1 --tasks-per-node=3 \\",
        f"      {words} --mode=train --cs_ip=127.0.0.1:9000",
        f"  csrun_cpu {words} --mode=eval",
    ]
    if len(program.params) > 1:
        others = ", ".join(path.name for path in program.params[1:])
        lines += ["", f"More parameter files in {program.params[0].parent}: {others}"]
    return "\n".join(lines) + "\n"


def missing_text(framework: str) -> str:
    """What to do where the framework of an example is not installed."""
    return (
        f"{_PACKAGES[framework][1]} is not installed for {sys.executable}; unless the site runs programs in "
        f"another environment, install it: pip install 'cs-toolkit[{framework}]'"
    )


def _is_installed(framework: str) -> bool:
    return find_spec(_PACKAGES[framework][0]) is not None


def _unknown(example: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # costs start-up time and is needed on this path only

    close = get_close_matches(example.lower(), known, n=1, cutoff=0.5)
    near = f"did you mean {close[0]}?" if close else f"expected one of: {', '.join(known)}"
    return f"there is no example {example!r}; {near} (all examples: csrun init)"


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
