"""No command and no program of a document is forgotten, and every exception is used."""

from __future__ import annotations

import builtins
import symtable
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run_guide import ROOT, command_of, lines_of, main, pages
from surroundings import ADDRESSES, EXIT_CODES, GUIDES, NOT_RUN, PROGRAMS, STANDS_FOR

LINES = {(pages.name(page), command_of(line)) for page in pages.pages() for _, line in pages.code_lines(page)}


def test_every_line_of_commands_has_one_guide() -> None:
    run = Counter((guide.page, line) for guide in GUIDES for block in lines_of(guide) for line in block)
    wanted = Counter(
        (pages.name(page), line)
        for page in pages.pages()
        for _, line in pages.code_lines(page)
        if not line.startswith("#")
    )
    assert run == wanted, "indented blocks have commands, which a guide in surroundings.py runs"


def test_every_exception_is_for_something() -> None:
    excepted = {(page, command) for page, commands in NOT_RUN.items() for command in commands}
    assert excepted | set(EXIT_CODES) <= LINES
    text = "\n".join(line for _, line in LINES)
    assert all(word in text for word in (*STANDS_FOR, *ADDRESSES))


def test_every_whole_program_is_executed() -> None:
    whole = {
        (pages.name(page), number)
        for page in pages.pages()
        for number, block in enumerate(pages.python_blocks(page))
        if not set(undefined(block))
    }
    assert whole == set(PROGRAMS)
    for (page, _), test in PROGRAMS.items():
        assert Path(page).name in (ROOT / test).read_text()


def test_a_page_without_a_guide_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs/how-to/slurm.md", "docs/reference/commands.md"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "run_guide.py: error: no guide named docs/reference/commands.md; expected: README.md#"
    )
    assert error.count("\n") == 1


def undefined(program: str) -> Iterator[str]:
    """Names that a program uses and does not have."""
    module = symtable.symtable(program, "", "exec")
    own = {
        symbol.get_name()
        for symbol in module.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    tables = [module]
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_global = symbol.is_global() or (table is module and symbol.is_referenced())
            if is_global and symbol.get_name() not in own and not hasattr(builtins, symbol.get_name()):
                yield symbol.get_name()
