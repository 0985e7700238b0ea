"""Runs the `// RUN:` lines of FileCheck tests in this process.

A line reads `cgc-opt ARGUMENTS | filecheck ARGUMENTS`; `%s` is the file itself. With `not` in front the
command must fail, and what it writes to the standard error is checked.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options

from cgc.tools.opt import main as cgc_opt

RUN_PREFIX = "// RUN: "


def run_lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(RUN_PREFIX) for line in lines if line.startswith(RUN_PREFIX)]


def run_line(line: str, path: Path, output_file: Path) -> None:
    command, check = (shlex.split(part.replace("%s", str(path))) for part in line.split("|"))
    must_fail = command[0] == "not"
    assert command[must_fail] == "cgc-opt"
    assert check[0] == "filecheck"
    result = CliRunner().invoke(cgc_opt, command[1 + must_fail :])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert bool(result.exit_code) == must_fail, result.output
    output_file.write_text(result.stderr if must_fail else result.stdout, encoding="utf-8")
    options = parse_argv_options([*check, "--input-file", str(output_file)])
    assert Matcher.from_opts(options).run() == 0, f"{path.name}: {line}"


@pytest.fixture
def check_file(tmp_path: Path) -> Callable[[Path], None]:
    """Runs all RUN lines of a file."""

    def check(path: Path) -> None:
        lines = run_lines(path)
        assert lines, f"{path.name} has no RUN line"
        for line in lines:
            run_line(line, path, tmp_path / "output.mlir")

    return check
