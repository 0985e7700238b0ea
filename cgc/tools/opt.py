"""`cgc-opt`: run passes on a module in its text form."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from pathlib import Path

import click
from xdsl.passes import ModulePass

from cgc.cirh.ops import ALL_OPS
from cgc.cirh.text import canonical_text, parse_module, print_module
from cgc.errors import CompileError
from cgc.lair.dialect import LAIR_DIALECTS
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import PASSES, run_pipeline


def transform(
    text: str, name: str, passes: str, *, verify_each: bool = False, canonical: bool = False
) -> str:
    """Return the text of a module after passes.

    Args:
        text: the module.
        name: file name for error messages.
        passes: names and options of passes; empty for none.
        verify_each: verify after every pass.
        canonical: print the canonical text.

    Raises:
        CompileError: the text is not a valid module, or the pipeline is wrong.
    """
    module = parse_module(text, name, dialects=LAIR_DIALECTS)
    run_pipeline(module, passes, verify=verify_each)
    return canonical_text(module) if canonical else print_module(module)


def listing() -> str:
    """Return all passes with their options and defaults, and all ops, each with a line of documentation."""
    passes = [
        (name + _options(pass_type), _first_line(pass_type)) for name, pass_type in sorted(PASSES.items())
    ]
    ops = sorted((op.name, _first_line(op)) for op in ALL_OPS)
    return f"Passes:\n{_table(passes)}\nOps:\n{_table(ops)}"


def _options(pass_type: type[ModulePass]) -> str:
    options = []
    for field in fields(pass_type):
        default = "" if field.default in ((), MISSING) else f"={field.default}"
        options.append(field.name.replace("_", "-") + default)
    return f"{{{' '.join(options)}}}" if options else ""


def _first_line(documented: type) -> str:
    return (documented.__doc__ or "").partition("\n")[0]


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "".join(f"  {name:{width}}  {text}\n" for name, text in rows)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", metavar="FILE|-", required=False)
@click.option(
    "--passes",
    default="",
    metavar="a,b{option=1}",
    help=f'Passes to run, in order; "default" means {DEFAULT_PIPELINE}.',
)
@click.option("--list", "list_all", is_flag=True, help="Show all passes with their options, and all ops.")
@click.option("--verify-each", is_flag=True, help="Verify the module after every pass.")
@click.option("--canonical", is_flag=True, help="Print without names and where ops come from.")
@click.option("-o", "--output", metavar="OUT", help="Write to this file instead of the standard output.")
def main(
    file: str | None, passes: str, list_all: bool, verify_each: bool, canonical: bool, output: str | None
) -> None:
    """Parse and verify a CIRH module, run passes over it and print it.

    With the environment variable CGC_VERIFY=1 every compilation verifies after every pass, as --verify-each
    does here.

    Exit status: 0, 1 for an invalid module or a file that cannot be used, 2 for bad usage or text that is no
    module.
    """
    if list_all:
        click.echo(listing(), nl=False)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE|-'.")
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        result = transform(text, file, passes, verify_each=verify_each, canonical=canonical)
        if output is None:
            click.echo(result, nl=False)
        else:
            Path(output).write_text(result, encoding="utf-8")
    except CompileError as error:
        _fail(str(error), error.exit_code)
    except UnicodeDecodeError as error:
        _fail(f"{file} is not UTF-8 text: {error}", 2)
    except OSError as error:
        _fail(f"cannot use {error.filename or output or file}: {error.strerror or error}", 1)


def _fail(message: str, exit_code: int) -> None:
    click.echo(f"cgc-opt: error: {message}", err=True)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
