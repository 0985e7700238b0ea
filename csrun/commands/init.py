"""csrun init: copy an example program with its parameter files and everything that it imports.

A copy has the paths of a checkout (`models/fc_mnist/tf/run.py`).
"""

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
# Folder of an example's programs, by framework.
FRAMEWORKS: Mapping[str, str] = {"tf": "tf", "torch": "pytorch"}

_PATTERNS = ("*.py", "{}/*.py", "{}/configs/*.yaml")
_SHOWN = 5
PROGRAM = "csrun"
_PACKAGES = {"tf": ("tensorflow", "TensorFlow"), "torch": ("torch", "PyTorch")}


class FilesInTheWayError(CsrunError):
    """A copy would replace files whose contents differ from the toolkit's."""


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
        """Return all fields, for --json."""
        return {
            "example": self.example,
            "framework": self.framework,
            "description": self.description,
            "run": str(self.run),
            "params": [str(path) for path in self.params],
        }


def source_folder() -> Path:
    """Return the folder of the examples: in this package if it is installed, next to it in a checkout."""
    packaged = Path(__file__).resolve().parents[1] / "examples"
    return packaged if packaged.is_dir() else packaged.parents[1] / FOLDER


def programs(source: Path) -> list[Program]:
    """Find all examples in a folder, sorted by name and framework."""
    found = sorted({path.parents[1].name for path in source.glob("*/*/run.py")})
    return [
        _program(source, example, framework)
        for example in found
        for framework, folder in FRAMEWORKS.items()
        if (source / example / folder / "run.py").is_file()
    ]


def files_of(source: Path, program: Program) -> list[Path]:
    """Find the files of a program, relative to `source`: its own, its parameter files, the shared ones."""
    # By patterns, because a checkout may also have the files of runs there.
    patterns = [pattern.format(FRAMEWORKS[program.framework]) for pattern in _PATTERNS]
    return [
        path.relative_to(source)
        for folder in (program.example, SHARED)
        for pattern in patterns
        for path in sorted((source / folder).glob(pattern))
    ]


def copy(source: Path, program: Program, directory: Path, *, force: bool) -> list[Path]:
    """Copy a program into `directory`, which is created; files with the right contents are not written again.

    Args:
        source: folder of the examples.
        program: the example to copy.
        directory: in which the folder `models` is created.
        force: replace files that differ.

    Returns:
        The files that were written, relative to `directory`.

    Raises:
        FilesInTheWayError: some exist and differ; nothing was written.
        CsrunError: a file cannot be read or written.
    """
    try:
        # The paths of a checkout: the commands of the documents work in a copy, too.
        wanted = {Path(FOLDER, path): (source / path).read_bytes() for path in files_of(source, program)}
        missing = {
            path: data
            for path, data in wanted.items()
            if not (directory / path).is_file() or (directory / path).read_bytes() != data
        }
        taken = [path for path in missing if (directory / path).exists()]
        if taken and not force:
            names = ", ".join(str(path) for path in taken[:_SHOWN])
            more = f" and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
            raise FilesInTheWayError(
                f"{directory} has {names}{more} already, with other contents; nothing was written: name "
                "another directory after the example, or replace them with --force"
            )
        for path, data in missing.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            replace_file(directory / path, data)
    except OSError as error:
        raise CsrunError(
            f"cannot write {error.filename}: {error.strerror}; expected a writable directory: name "
            "another one after the example"
        ) from error
    return list(missing)


def _program(source: Path, example: str, framework: str) -> Program:
    folder = source / example / FRAMEWORKS[framework]
    # The smallest model first: copied_text starts with it.
    params = sorted(
        folder.glob("configs/*.yaml"), key=lambda path: (not path.stem.endswith("_tiny"), path.name)
    )
    docstring = ast.get_docstring(ast.parse((folder / "model.py").read_text(encoding="utf-8"))) or ""
    return Program(
        example,
        framework,
        docstring.partition("\n")[0],
        Path(FOLDER, folder.relative_to(source), "run.py"),
        tuple(Path(FOLDER, path.relative_to(source)) for path in params),
    )


def names(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of an example."""
    found = {program.example: program.description for program in programs(source_folder())}
    return [CompletionItem(name, help=text) for name, text in found.items() if name.startswith(incomplete)]


@click.command("init", options_metavar="[FLAGS]")
@click.argument("example", required=False, shell_complete=names)
@click.argument("directory", required=False, default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    help="Framework of the program. Default: the installed one, tf if both are.",
)
@click.option("--list", "only_list", is_flag=True, help="List the examples, as without EXAMPLE.")
@click.option("--force", is_flag=True, help="Replace files that exist with other contents.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def init(
    example: str | None, directory: Path, framework: str | None, only_list: bool, force: bool, as_json: bool
) -> int:
    """Copies an example program, its parameter files and their imports into DIRECTORY (default: here).

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
        raise CsrunError(f"there are no examples in {source}; expected those of the toolkit: reinstall it")
    if example is None or only_list:
        listed = [program for program in known if framework in (None, program.framework)]
        write_text(STDOUT, _json([one.to_json() for one in listed]) if as_json else list_text(listed))
        return 0
    program = choose(known, example, framework)
    written = copy(source, program, directory, force=force)
    result = {**program.to_json(), "directory": str(directory.resolve()), "written": list(map(str, written))}
    write_text(STDOUT, _json(result) if as_json else copy_message(program, directory, len(written)))
    if not _is_installed(program.framework):
        say(PROGRAM, not_installed_message(program.framework))
    return 0


def choose(known: Sequence[Program], example: str, framework: str | None) -> Program:
    """Return the program for the arguments of the command line.

    Raises:
        UsageError: no such example exists, or none for the framework.
    """
    name = example.replace("-", "_").lower()
    found = {program.framework: program for program in known if program.example == name}
    if not found:
        from difflib import get_close_matches  # costs start-up time and is needed on this path only

        names = sorted({program.example for program in known})
        close = get_close_matches(example.lower(), names, n=1, cutoff=0.5)
        near = f"did you mean {close[0]}?" if close else f"expected one of: {', '.join(names)}"
        raise UsageError(f"unknown example {example!r}; {near} (all examples: csrun init)")
    if framework is None:
        framework = next((one for one in found if _is_installed(one)), next(iter(found)))
    if framework not in found:
        others = ", ".join(program.example for program in known if program.framework == framework)
        raise UsageError(
            f"the example '{name}' exists only for --framework={', '.join(found)}; "
            f"examples for {framework}: {others}"
        )
    return found[framework]


def list_text(known: Sequence[Program]) -> str:
    """Return one line per example."""
    frameworks: dict[str, list[str]] = {}
    for program in known:
        frameworks.setdefault(program.example, []).append(program.framework)
    texts = {program.example: program.description for program in reversed(known)}
    lines = [f"{name:<12}  {', '.join(frameworks[name]):<9}  {texts[name]}" for name in frameworks]
    return "\n".join([*lines, "", "csrun init EXAMPLE [DIRECTORY] copies one\n"])


def copy_message(program: Program, directory: Path, num_written: int) -> str:
    """Return the message after a copy, with the commands to run next."""
    framework = _PACKAGES[program.framework][1]
    count = f"{num_written} file{'s' if num_written > 1 else ''}"
    done = f"{count} written" if num_written else "all files exist already"
    lines = [f"{program.example} for {framework} in {directory / program.run.parent}: {done}", ""]
    if directory != Path():
        lines.append(f"  cd {quote(str(directory))}")
    command = f"python {program.run}"
    if program.framework == "torch":  # these programs have no default parameters
        command += f" -p {program.params[0]}"
    lines += [
        f"  csrun_cpu {command} --mode=train --validate_only",
        "  cs_system serve &",
        "  csrun_wse --total-nodes=1 --tasks-per-node=3 \\",
        f"      {command} --mode=train --cs_ip=127.0.0.1:9000",
        f"  csrun_cpu {command} --mode=eval",
    ]
    if len(program.params) > 1:
        others = ", ".join(path.name for path in program.params[1:])
        lines += ["", f"More parameter files in {program.params[0].parent}: {others}"]
    return "\n".join(lines) + "\n"


def not_installed_message(framework: str) -> str:
    """Return the notice that the framework of an example is not installed."""
    return (
        f"{_PACKAGES[framework][1]} is not installed for {sys.executable}; unless the site runs programs in "
        f"another environment, install it: pip install 'cs-toolkit[{framework}]'"
    )


def _is_installed(framework: str) -> bool:
    return find_spec(_PACKAGES[framework][0]) is not None


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
