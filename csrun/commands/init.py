"""csrun init: an example program with its parameter files in a directory of the user's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

import click
from click.shell_completion import CompletionItem

from cs_toolkit.errors import UsageError
from csrun.console import STDOUT, say, write_text
from csrun.errors import CsrunError
from csrun.example_programs import FRAMEWORKS, Program, copy, programs, source_folder

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
