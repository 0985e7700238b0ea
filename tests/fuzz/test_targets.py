"""All parsers of bytes from the network or from files, on their corpus and on mutations of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.replay import check_corpus
from tests.fuzz.target import CORPUS, HERE, NATIVE_MODULES, find_target, target_names

ROOT = HERE.parents[1]
NAMES = target_names()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(NATIVE_MODULES)])
def test_a_parser_raises_only_errors_that_callers_handle(name: str) -> None:
    check_corpus(find_target(name))


@pytest.mark.parametrize("module", NATIVE_MODULES)
def test_the_parsers_of_libraries_neither_crash_nor_hang(module: str) -> None:
    """In a child process, which a crash would end."""
    names = [name for name in NAMES if name.startswith(f"{module}.")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.replay", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)
